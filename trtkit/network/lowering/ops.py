"""The interface of lowerings: primitives that TensorRT's network API and ONNX share."""

from __future__ import annotations

from abc import ABC, abstractmethod
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any, Generic, Protocol, Self, TypeAlias, TypeVar

from trtkit.dtypes import FP32

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from contextlib import AbstractContextManager

    import numpy as np

    from trtkit.dtypes import DType
    from trtkit.network.graph import Shape


class Value(Protocol):
    """A tensor of a writer. Operators broadcast as in NumPy; numbers take the tensor's type."""

    @property
    def shape(self) -> Shape:
        """Sizes by axis; -1 where known at run time only."""

    @property
    def dtype(self) -> DType:
        """The element type."""

    def __add__(self, other: Any, /) -> Self: ...
    def __radd__(self, other: Any, /) -> Self: ...
    def __sub__(self, other: Any, /) -> Self: ...
    def __rsub__(self, other: Any, /) -> Self: ...
    def __mul__(self, other: Any, /) -> Self: ...
    def __rmul__(self, other: Any, /) -> Self: ...
    def __truediv__(self, other: Any, /) -> Self: ...
    def __rtruediv__(self, other: Any, /) -> Self: ...
    def __and__(self, other: Any, /) -> Self: ...
    def __gt__(self, other: Any, /) -> Self: ...
    def __lt__(self, other: Any, /) -> Self: ...


T = TypeVar("T", bound=Value)
Dim: TypeAlias = int | T
"""A size: a number, or an int64 tensor of shape [1] if it is known only at run time."""

UNARY = ("neg", "abs", "sqrt", "exp", "log", "floor", "ceil", "round", "sin", "cos", "sigmoid", "tanh", "relu", "not")
BINARY = ("add", "sub", "mul", "div", "pow", "min", "max", "floor_div", "eq", "gt", "lt", "and", "or")
REDUCTIONS = ("sum", "mean", "max", "min", "prod")


class Ops(ABC, Generic[T]):
    """A writer of primitives. Indices are int32; data types never mix, except numbers with tensors."""

    _is_fp32 = False

    @abstractmethod
    def scope(self, name: str) -> AbstractContextManager[None]:
        """Put `name` before the names of the nodes written inside."""

    @abstractmethod
    def constant(self, array: np.ndarray[Any, Any], dtype: DType | None = None) -> T:
        """Write an array, converted if `dtype` is not its own."""

    @abstractmethod
    def cast(self, x: T, dtype: DType) -> T:
        """Convert to another type; return the tensor itself if it has that type."""

    @abstractmethod
    def dequantize(self, x: T, scale: float, dtype: DType) -> T:
        """Return x, in int8 or fp8, times a number, in `dtype`."""

    @abstractmethod
    def reshape(self, x: T, dims: Sequence[Dim[T]]) -> T:
        """Change the shape: 0 keeps the size of that axis, one -1 takes the rest."""

    @abstractmethod
    def transpose(self, x: T, order: Sequence[int]) -> T:
        """Permute the axes."""

    @abstractmethod
    def unsqueeze(self, x: T, *axes: int) -> T:
        """Insert axes of size 1, at these places of the result."""

    @abstractmethod
    def squeeze(self, x: T, *axes: int) -> T:
        """Remove axes of size 1."""

    @abstractmethod
    def expand(self, x: T, dims: Sequence[Dim[T]]) -> T:
        """Repeat axes of size 1 up to `dims`, which are as many as x has."""

    @abstractmethod
    def concat(self, parts: Sequence[T], axis: int) -> T:
        """Join tensors along one axis."""

    @abstractmethod
    def take(self, x: T, axis: int, start: int, size: int) -> T:
        """Return `size` elements of one axis from `start`; the other axes unchanged."""

    @abstractmethod
    def pad(self, x: T, axis: int, before: int, after: int, value: float = 0.0) -> T:
        """Add `before` and `after` elements of a value at the ends of one axis."""

    @abstractmethod
    def gather(self, x: T, index: T, axis: int) -> T:
        """Pick slices of one axis: the axis is replaced by the index's axes."""

    @abstractmethod
    def gather_elements(self, x: T, index: T, axis: int) -> T:
        """Pick single elements: index has x's rank, and its own size along `axis`."""

    @abstractmethod
    def gather_nd(self, x: T, index: T, batch_dims: int = 0) -> T:
        """Pick what the vectors along the index's last axis refer to, below the first `batch_dims` axes of both."""

    @abstractmethod
    def scatter_nd(self, x: T, index: T, updates: T) -> T:
        """Return x with the elements that the vectors along the index's last axis refer to replaced by `updates`."""

    @abstractmethod
    def grid_sample(
        self, x: T, grid: T, *, mode: str = "linear", padding: str = "zeros", align_corners: bool = False
    ) -> T:
        """Sample x [N, C, (D,) H, W] at grid [N, ..., 2 or 3] in [-1, 1], x coordinate first; same type.

        mode: linear, nearest, or cubic. padding: zeros, border, or reflection.
        """

    @abstractmethod
    def matmul(self, a: T, b: T) -> T:
        """Multiply the last two axes; leading axes broadcast."""

    @abstractmethod
    def unary(self, name: str, x: T) -> T:
        """Apply one of `UNARY` to each element."""

    @abstractmethod
    def binary(self, name: str, a: T | float, b: T | float) -> T:
        """Apply one of `BINARY`; a number takes the other side's type."""

    @abstractmethod
    def reduce(self, name: str, x: T, axes: Sequence[int], *, keep: bool = False) -> T:
        """Apply one of `REDUCTIONS` over axes, which are removed, or kept with size 1."""

    @abstractmethod
    def select(self, condition: T, then: T, otherwise: T | float) -> T:
        """Take `then` where the condition holds, else `otherwise`; shapes broadcast."""

    @abstractmethod
    def top_k(self, x: T, k: int, axis: int = -1) -> tuple[T, T]:
        """Return the k largest along an axis in descending order, and their indices in int32."""

    @abstractmethod
    def softmax(self, x: T, axis: int = -1) -> T:
        """Normalize exponentials along an axis."""

    @abstractmethod
    def size(self, x: T, axis: int) -> Dim[T]:
        """Return the size of an axis: a number if it is known."""

    @abstractmethod
    def arange(self, size: Dim[T], dtype: DType) -> T:
        """Return 0, 1, ... `size` - 1 as a vector of fp32 or int32."""

    @abstractmethod
    def repeat(self, count: int, state: Sequence[T], step: Callable[[Sequence[T]], Sequence[T]]) -> list[T]:
        """Replace tensors by the results of `step`, `count` times; types and shapes stay.

        step: reads only its tensors: AutoCast loses tensors that a loop's body reads from outside.
        """

    @contextmanager
    def fp32(self) -> Iterator[None]:
        """Mark the nodes written inside: a conversion of the model to fp16 or bf16 leaves them in fp32."""
        is_inner, self._is_fp32 = self._is_fp32, True
        with nullcontext() if is_inner else self.scope(FP32_SCOPE):
            yield
        self._is_fp32 = is_inner

    def size_number(self, x: T, axis: int, dtype: DType = FP32) -> float | T:
        """Return the size of an axis for arithmetic: a number, or a tensor of shape [1] and type `dtype`."""
        size = self.size(x, axis)
        return size if isinstance(size, int) else self.cast(size, dtype)

    def split(self, x: T, axis: int) -> list[T]:
        """Split an axis of known size into its elements; the axis is removed."""
        return [self.squeeze(self.take(x, axis, index, 1), axis % len(x.shape)) for index in range(x.shape[axis])]

    def stack(self, parts: Sequence[T], axis: int) -> T:
        """Join tensors of equal shapes along a new axis at this position of the result."""
        axis %= len(parts[0].shape) + 1
        return self.concat([self.unsqueeze(part, axis) for part in parts], axis)

    def clip(self, x: T, low: float | T, high: float | T) -> T:
        """Limit elements to [low, high]."""
        return self.binary("min", self.binary("max", x, low), high)


class Lowering(Protocol):
    """Write an op's primitives. inputs: None if an optional one is missing. form: one of the op's `forms`."""

    def __call__(self, o: Ops[T], inputs: Sequence[T | None], attributes: Any, form: str) -> list[T]:
        """Return the outputs."""


FP32_SCOPE = "fp32"
