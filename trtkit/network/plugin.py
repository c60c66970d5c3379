"""Custom ops as TensorRT's quickly deployable plugins: a Triton kernel, compiled into the engine.

Written against `tensorrt.plugin` of TensorRT 11.4, which is handed in as a module: it does not load without
TensorRT's library. What is not TensorRT's own is in plain functions here and in the ops' `kernel.py`.
"""

from __future__ import annotations

import inspect
import typing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from trtkit.dtypes import from_tensorrt
from trtkit.network.aot import COMPUTE_CAPABILITIES, compile_kernel, load_kernels
from trtkit.network.custom_op import DOMAIN

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from trtkit.network.aot import Launch
    from trtkit.network.custom_op import CustomOp

Sizes = list[Any]
"""A shape: numbers, and `Size` where TensorRT knows the size at run time only."""


@dataclass(frozen=True)
class Plugin:
    """What a plugin needs beyond the op and its kernel.

    inputs: names; all are given. types: of each input and then of the output, in TensorRT's words: `FP32|FP16` for
    the data type, the same for all of them, `FP32` for coordinates. data: the input whose type is the data type.
    shape: the output's from the inputs'.
    """

    inputs: tuple[str, ...]
    types: tuple[str, ...]
    data: int
    shape: Callable[[Sequence[Sequence[Any]]], Sequence[Any]]


@dataclass(frozen=True)
class Size:
    """TensorRT's expression of a size. It takes a number on either side, as TensorRT's own does not."""

    expression: Any

    def __mul__(self, other: Any) -> Size:
        return Size(self.expression * plain(other))

    __rmul__ = __mul__


def plain(value: Any) -> Any:
    """Return a number or TensorRT's expression."""
    return value.expression if isinstance(value, Size) else value


def ceil_div(trtp: Any, value: Any, divisor: int) -> Any:
    """Divide and round up: numbers here, expressions by TensorRT."""
    return Size(trtp.cdiv(value.expression, divisor)) if isinstance(value, Size) else -(-value // divisor)


def attribute_types(op: CustomOp) -> dict[str, Any]:
    """Return the types that TensorRT is told of the op's attributes: lists are arrays."""
    hints = typing.get_type_hints(op.attributes)
    return {name: _attribute_type(hint) for name, hint in hints.items()}


def attributes_of(op: CustomOp, values: Mapping[str, Any]) -> Any:
    """Return the op's attributes from TensorRT's values."""
    return op.attributes(
        **{name: tuple(value.tolist()) if isinstance(value, np.ndarray) else value for name, value in values.items()}
    )


def compute_capability(present: int) -> int:
    """Return the newest one that kernels are compiled for and a GPU can run."""
    return max(known for known in COMPUTE_CAPABILITIES if known <= present)


def define(trtp: Any, op: CustomOp, capability: int) -> str:
    """Register the op's plugin with `trtp`, the module `tensorrt.plugin`; return its id, `trtkit::Op`.

    capability: of the GPU that the engine is for, as 10 * major + minor.
    """
    plugin: Plugin = op.part("plugin").PLUGIN
    name = f"{DOMAIN}::{op.name}"
    tensors = [(tensor, trtp.TensorDesc) for tensor in plugin.inputs]
    attributes = list(attribute_types(op).items())
    count = len(plugin.inputs)

    def register(*values: Any) -> Any:
        shape = [plain(size) for size in plugin.shape([list(desc.shape_expr) for desc in values[:count]])]
        return trtp.from_shape_expr(tuple(shape), values[plugin.data].dtype)

    def autotune(*_values: Any) -> list[Any]:
        return [trtp.AutoTuneCombination(", ".join(plugin.types), "LINEAR")]

    def aot_impl(*values: Any) -> tuple[Any, ...]:
        given = attributes_of(op, dict(zip(dict(attributes), values[count : count + len(attributes)], strict=True)))
        dtype = from_tensorrt(values[plugin.data].dtype.name)
        kernels = load_kernels(op)
        started = kernels.plan(
            [sizes_of(desc) for desc in values[:count]], given, lambda value, by: ceil_div(trtp, value, by)
        )
        compiled = compile_kernel(kernels.to_compile(dtype, started), compute_capability(capability))
        return (
            compiled.name,
            compiled.ptx,
            _launch_params(trtp, started, compiled.shared_bytes),
            _scalars(trtp, started),
        )

    outputs = ("outputs", typing.Tuple[trtp.TensorDesc])  # noqa: UP006 - TensorRT compares the origin
    made = typing.Tuple[typing.Union[str, bytes], typing.Union[str, bytes], trtp.KernelLaunchParams, trtp.SymExprs]  # noqa: UP006, UP007
    trtp.register(name)(_signed(register, [*tensors, *attributes], trtp.TensorDesc))
    trtp.autotune(name)(_signed(autotune, [*tensors, outputs], typing.List[trtp.AutoTuneCombination]))  # noqa: UP006
    trtp.aot_impl(name)(_signed(aot_impl, [*tensors, *attributes, outputs, ("tactic", int)], made))
    return name


def sizes_of(desc: Any) -> Sizes:
    """Return a tensor's shape from its TensorDesc: a number where it is known, else TensorRT's expression."""
    return [
        size if size >= 0 else Size(expression) for size, expression in zip(desc.shape, desc.shape_expr, strict=True)
    ]


def _launch_params(trtp: Any, started: Launch, shared_bytes: int) -> Any:
    x, y, z = (plain(size) for size in started.grid)
    return trtp.KernelLaunchParams(
        grid_x=x, grid_y=y, grid_z=z, block_x=32 * started.num_warps, shared_mem=shared_bytes
    )


def _scalars(trtp: Any, started: Launch) -> Any:
    """Return the kernel's int32 arguments."""
    scalars = trtp.SymExprs(len(started.scalars))
    for place, value in enumerate(started.scalars.values()):
        scalars[place] = trtp.SymInt32(plain(value))
    return scalars


def _signed(function: Callable[..., Any], parameters: Sequence[tuple[str, Any]], returned: Any) -> Any:
    """Give a function the signature that TensorRT reads."""
    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    listed = [inspect.Parameter(name, kind, annotation=annotation) for name, annotation in parameters]

    def call(*args: Any, **kwargs: Any) -> Any:
        values = dict(zip((name for name, _ in parameters), args, strict=False)) | kwargs
        return function(*(values[name] for name, _ in parameters))

    call.__signature__ = inspect.Signature(listed, return_annotation=returned)  # type: ignore[attr-defined]
    return call


def _attribute_type(hint: Any) -> Any:
    """Return a built-in type, or an array's where the attribute is a tuple."""
    if typing.get_origin(hint) is not tuple:
        return hint
    inner = typing.get_args(hint)[0]
    return np.typing.NDArray[np.int32] if inner is int else np.typing.NDArray[np.float32]
