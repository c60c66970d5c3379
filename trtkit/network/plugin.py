"""Custom ops as TensorRT's quickly deployable plugins: a Triton kernel, compiled into the engine.

Written against `tensorrt.plugin` of TensorRT 11.4, which is passed in as a module, since it does not load without
TensorRT's library. Everything independent of TensorRT is in plain functions here and in the ops' `kernel.py`.
"""

from __future__ import annotations

import inspect
import math
import typing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from trtkit.dtypes import dtype_of, from_tensorrt
from trtkit.network.aot import COMPUTE_CAPABILITIES, compile_kernel, load_kernels
from trtkit.network.custom_op import DOMAIN
from trtkit.network.foreign import Fact, Refusal

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from trtkit.arrays import Array
    from trtkit.dtypes import DType
    from trtkit.network.aot import Launch
    from trtkit.network.custom_op import CustomOp

Sizes = list[Any]
"""A shape: numbers, and `Size` for sizes that TensorRT knows only at run time."""


def _anything(facts: Sequence[Fact], attributes: Any) -> None:
    """Accept everything."""


@dataclass(frozen=True)
class Plugin:
    """What a plugin needs in addition to the op and its kernel.

    inputs: names; all are given.
    types: of each input and then of each output, in TensorRT's notation: `FP32|FP16` for the data type, the same for
        all of them, `FP32` for coordinates; or a function of the attributes that returns them.
    data: the input that determines the data type.
    shapes: the outputs' from the inputs' and the attributes.
    limits: raises Refusal for what the kernel does not support.
    defaults: values of the last inputs if they are optional and missing, in the data type: arrays from the facts of the
        others.
    """

    inputs: tuple[str, ...]
    types: tuple[str, ...] | Callable[[Any], tuple[str, ...]]
    data: int
    shapes: Callable[[Sequence[Sequence[Any]], Any], Sequence[Sequence[Any]]]
    limits: Callable[[Sequence[Fact], Any], None] = _anything
    defaults: tuple[Callable[[Sequence[Fact]], Array], ...] = ()

    def types_of(self, attributes: Any) -> tuple[str, ...]:
        """Return the types of the inputs and then of the outputs, in TensorRT's notation."""
        return self.types(attributes) if callable(self.types) else self.types

    def missing(self, facts: Sequence[Fact]) -> list[Array]:
        """Return default values for the missing last inputs, given the facts of the others.

        Too few inputs stay too few.
        """
        absent = len(self.inputs) - len(facts)
        return [default(facts) for default in self.defaults[-absent:]] if 0 < absent <= len(self.defaults) else []


@dataclass(frozen=True)
class Size:
    """TensorRT's expression of a size. Unlike TensorRT's own, it takes numbers on either side."""

    expression: Any

    def __mul__(self, other: Any) -> Size:
        return Size(self.expression * plain(other))

    def __add__(self, other: Any) -> Size:
        return Size(self.expression + plain(other))

    __rmul__, __radd__ = __mul__, __add__


def plain(value: Any) -> Any:
    """Return a number or TensorRT's expression."""
    return value.expression if isinstance(value, Size) else value


def ceil_div(trtp: Any, value: Any, divisor: int) -> Any:
    """Divide and round up: numbers here, expressions by TensorRT."""
    return Size(trtp.cdiv(value.expression, divisor)) if isinstance(value, Size) else -(-value // divisor)


def attribute_types(op: CustomOp) -> dict[str, Any]:
    """Return the types of the op's attributes as declared to TensorRT: lists are arrays."""
    hints = typing.get_type_hints(op.attributes)
    return {name: _attribute_type(hint) for name, hint in hints.items()}


def attributes_of(op: CustomOp, values: Mapping[str, Any]) -> Any:
    """Return the op's attributes from TensorRT's values."""
    return op.attributes(
        **{name: tuple(value.tolist()) if isinstance(value, np.ndarray) else value for name, value in values.items()}
    )


def attributes_for(op: CustomOp, attributes: object) -> dict[str, object]:
    """Return the op's attributes for TensorRT: every one, lists as arrays."""
    return {
        name: np.array(value, np.int32 if type_.__args__[1].__args__[0] is np.int32 else np.float32)
        if isinstance(value := getattr(attributes, name), tuple)
        else type_(value)
        for name, type_ in attribute_types(op).items()
    }


def compute_capability(present: int) -> int:
    """Return the newest compute capability that kernels are compiled for and a GPU can run."""
    return max(known for known in COMPUTE_CAPABILITIES if known <= present)


def refusal(op: CustomOp, facts: Sequence[Fact | None], attributes: Any) -> str:
    """Return why the op's plugin does not support these inputs, so that the op is lowered; "" if it does."""
    if not op.has_part("plugin"):
        return "it has no plugin"
    plugin: Plugin = op.part("plugin").PLUGIN
    known = [fact for fact in facts if fact is not None]
    if len(known) + len(plugin.missing(known)) != len(plugin.inputs):
        return f"{len(known)} inputs, its plugin takes {len(plugin.inputs)}: {', '.join(plugin.inputs)}"
    data = known[plugin.data].dtype
    for name, types, fact in zip(plugin.inputs, plugin.types_of(attributes), known, strict=False):
        if fact.dtype != type_of(types, data) or fact.dtype.name.upper() not in types.split("|"):
            return f"input `{name}` has type {fact.dtype}, its plugin takes {types}"
    try:
        _check_limits(plugin, known, attributes)
    except Refusal as error:
        return error.what
    return ""


def _check_limits(plugin: Plugin, facts: Sequence[Fact], attributes: Any) -> None:
    """Raise Refusal for what the kernel does not support; kernels index elements with int32."""
    shapes = [fact.shape for fact in facts]
    is_known = all(-1 not in shape for shape in shapes)
    for shape in [*shapes, *(plugin.shapes(shapes, attributes) if is_known else ())]:
        if -1 not in shape and math.prod(shape) >= 2**31:
            raise Refusal(f"a tensor of shape {list(shape)}, its plugin takes fewer than 2**31 elements")
    plugin.limits(facts, attributes)


def type_of(types: str, data: DType) -> DType:
    """Return the type that TensorRT's notation `FP32|FP16`, `INT32` means for this data type."""
    return data if "|" in types else dtype_of(types.lower())


def define(trtp: Any, op: CustomOp, capability: int) -> str:
    """Register the op's plugin with `trtp`, the module `tensorrt.plugin`; return its id, `trtkit::Op`.

    capability: of the engine's GPU, as 10 * major + minor. A process registers an op once; later calls do nothing.
    """
    plugin: Plugin = op.part("plugin").PLUGIN
    name = f"{DOMAIN}::{op.name}"
    if hasattr(getattr(trtp.op, DOMAIN, None), op.name):
        return name
    tensors = [(tensor, trtp.TensorDesc) for tensor in plugin.inputs]
    attributes = list(attribute_types(op).items())
    count = len(plugin.inputs)
    output_types = (trtp.TensorDesc,) * len(op.outputs)
    returned = trtp.TensorDesc if len(output_types) == 1 else typing.Tuple[output_types]  # noqa: UP006 - TensorRT compares the origin
    outputs = ("outputs", typing.Tuple[output_types])  # noqa: UP006

    def attributes_at(values: Sequence[Any]) -> Any:
        return attributes_of(op, dict(zip(dict(attributes), values[count : count + len(attributes)], strict=True)))

    def register(*values: Any) -> Any:
        descs = _output_descs(trtp, plugin, values[:count], attributes_at(values))
        return descs[0] if len(descs) == 1 else descs

    def autotune(*values: Any) -> list[Any]:
        return [trtp.AutoTuneCombination(", ".join(plugin.types_of(attributes_at(values))), "LINEAR")]

    def aot_impl(*values: Any) -> tuple[Any, ...]:
        return _compiled(trtp, op, values[:count], attributes_at(values), compute_capability(capability))

    trtp.register(name)(_signed(register, [*tensors, *attributes], returned))
    trtp.autotune(name)(_signed(autotune, [*tensors, *attributes, outputs], typing.List[trtp.AutoTuneCombination]))  # noqa: UP006
    text = typing.Union[str, bytes]  # noqa: UP007
    answer = typing.Tuple[text, text, trtp.KernelLaunchParams, trtp.SymExprs]  # noqa: UP006
    trtp.aot_impl(name)(_signed(aot_impl, [*tensors, *attributes, outputs, ("tactic", int)], answer))
    return name


def _output_descs(trtp: Any, plugin: Plugin, inputs: Sequence[Any], attributes: Any) -> tuple[Any, ...]:
    """Describe the outputs: shapes as TensorRT's expressions, and types."""
    shapes = plugin.shapes([[Size(size) for size in desc.shape_expr] for desc in inputs], attributes)
    data = inputs[plugin.data].dtype
    types = [
        data if "|" in types else getattr(type(data), dtype_of(types.lower()).tensorrt)
        for types in plugin.types_of(attributes)[len(inputs) :]
    ]
    return tuple(
        trtp.from_shape_expr(tuple(plain(size) for size in shape), dtype)
        for shape, dtype in zip(shapes, types, strict=True)
    )


def _compiled(trtp: Any, op: CustomOp, inputs: Sequence[Any], attributes: Any, capability: int) -> tuple[Any, ...]:
    """Return the kernel's name, its PTX, its launch and its int32 arguments. inputs: their descriptions.

    Raises Refusal above the plugin's limits.
    """
    plugin: Plugin = op.part("plugin").PLUGIN
    dtypes = [from_tensorrt(desc.dtype.name) for desc in inputs]
    facts = [Fact(dtype, tuple(desc.shape)) for dtype, desc in zip(dtypes, inputs, strict=True)]
    _check_limits(plugin, facts, attributes)
    kernels = load_kernels(op)
    sizes = [sizes_of(desc) for desc in inputs]
    started = kernels.plan(sizes, attributes, lambda value, by: ceil_div(trtp, value, by))
    compiled = compile_kernel(kernels.to_compile(dtypes[plugin.data], started), capability)
    return compiled.name, compiled.ptx, _launch_params(trtp, started, compiled.shared_bytes), _scalars(trtp, started)


def sizes_of(desc: Any) -> Sizes:
    """Return a tensor's shape from its TensorDesc: numbers if known, else TensorRT's expressions."""
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
    for index, value in enumerate(started.scalars.values()):
        scalars[index] = trtp.SymInt32(plain(value))
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
    """Return a built-in type, or an array's if the attribute is a tuple."""
    if typing.get_origin(hint) is not tuple:
        return hint
    inner = typing.get_args(hint)[0]
    return np.typing.NDArray[np.int32] if inner is int else np.typing.NDArray[np.float32]
