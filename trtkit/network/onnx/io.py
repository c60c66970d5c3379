"""Inputs and outputs of an ONNX graph as plain data; saving, prefixing and merging models."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from trtkit.dtypes import dtype_of, from_onnx
from trtkit.errors import SourceError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    import onnx

# The largest file that protobuf can hold.
LARGEST_INLINE_BYTES = 2**31 - 2**20


@dataclass(frozen=True)
class OnnxTensorSpec:
    """A network input or output: type by trtkit's name; each dimension a size or a symbol."""

    name: str
    dtype: str
    shape: tuple[int | str, ...]

    @property
    def is_dynamic(self) -> bool:
        """Whether any dimension is symbolic."""
        return any(isinstance(dim, str) for dim in self.shape)


def graph_inputs(model: onnx.ModelProto) -> list[OnnxTensorSpec]:
    """Return the inputs that a caller sets, without initializers that are also listed as inputs."""
    initializers = {tensor.name for tensor in model.graph.initializer}
    return [_spec(value) for value in model.graph.input if value.name not in initializers]


def graph_outputs(model: onnx.ModelProto) -> list[OnnxTensorSpec]:
    """Return the outputs."""
    return [_spec(value) for value in model.graph.output]


def is_unnamed(dim: onnx.TensorShapeProto.Dimension) -> bool:
    """Whether a dimension has neither a size nor a distinctive name."""
    if dim.HasField("dim_value"):
        return dim.dim_value < 0
    return dim.dim_param.strip() in {"", "?", "-1", "None", "none", "unk"}


def random_inputs(model: onnx.ModelProto, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, np.ndarray[Any, Any]]:
    """Return seeded inputs of the given shapes: normal floats, small integers."""
    generator = np.random.default_rng(0)
    arrays = {}
    for spec in graph_inputs(model):
        dtype, shape = dtype_of(spec.dtype), shapes[spec.name]
        values = generator.standard_normal(shape) if dtype.is_float else generator.integers(0, 2, shape)
        arrays[spec.name] = values.astype(dtype.numpy)
    return arrays


def save_model(model: onnx.ModelProto, path: Path) -> None:
    """Save `model`, with its weights in a separate file if one file cannot hold them."""
    import onnx

    large = model.ByteSize() > LARGEST_INLINE_BYTES
    onnx.save(model, str(path), save_as_external_data=large, location=f"{path.name}.data" if large else None)


def _spec(value: onnx.ValueInfoProto) -> OnnxTensorSpec:
    import onnx

    number = value.type.tensor_type.elem_type
    is_known = number in onnx.TensorProto.DataType.values()
    onnx_name = onnx.TensorProto.DataType.Name(number) if is_known else str(number)
    dtype = from_onnx(onnx_name)
    if dtype is None:
        raise SourceError(
            f"type {onnx_name.lower()} of `{value.name}` has no counterpart in TensorRT",
            fix="cast it inside the model before export",
        )
    dims = value.type.tensor_type.shape.dim
    shape = tuple(
        f"{value.name}.{axis}" if is_unnamed(dim) else dim.dim_param or dim.dim_value for axis, dim in enumerate(dims)
    )
    return OnnxTensorSpec(value.name, dtype.name, shape)


def prefixed(model: onnx.ModelProto, prefix: str) -> onnx.ModelProto:
    """Return `model` with `prefix` on all names except those of its inputs and outputs."""
    from onnx import compose

    return compose.add_prefix(model, prefix, rename_inputs=False, rename_outputs=False)


def merged(models: Sequence[onnx.ModelProto]) -> onnx.ModelProto:
    """Merge models, in the order in which they run, into one.

    Tensors of the same name are the same tensor: an output of one that is an input of another stays an output too. The
    models must have the same opset and distinct inner names.
    """
    import onnx

    result = onnx.ModelProto()
    result.CopyFrom(models[0])
    for model in models[1:]:
        outputs = {value.name for value in result.graph.output}
        known = {value.name for value in result.graph.input}
        result.graph.node.extend(model.graph.node)
        result.graph.initializer.extend(model.graph.initializer)
        result.graph.value_info.extend(model.graph.value_info)
        result.graph.output.extend(model.graph.output)
        result.graph.input.extend(value for value in model.graph.input if value.name not in outputs | known)
        result.functions.extend(model.functions)
    return result
