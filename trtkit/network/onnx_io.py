"""Inputs and outputs of an ONNX graph as plain data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from trtkit.dtypes import from_onnx
from trtkit.errors import SourceError

if TYPE_CHECKING:
    import onnx


@dataclass(frozen=True)
class TensorSpec:
    """A network input or output: type by trtkit's name; each dimension a size or a symbol."""

    name: str
    dtype: str
    shape: tuple[int | str, ...]

    @property
    def is_dynamic(self) -> bool:
        """Whether any dimension is symbolic."""
        return any(isinstance(dim, str) for dim in self.shape)


def graph_inputs(model: onnx.ModelProto) -> list[TensorSpec]:
    """Return the inputs that a caller feeds: initializers that are also listed as inputs are left out."""
    initializers = {tensor.name for tensor in model.graph.initializer}
    return [_spec(value) for value in model.graph.input if value.name not in initializers]


def graph_outputs(model: onnx.ModelProto) -> list[TensorSpec]:
    """Return the outputs."""
    return [_spec(value) for value in model.graph.output]


def _spec(value: onnx.ValueInfoProto) -> TensorSpec:
    import onnx

    onnx_name = onnx.TensorProto.DataType.Name(value.type.tensor_type.elem_type)
    dtype = from_onnx(onnx_name)
    if dtype is None:
        raise SourceError(
            f"type {onnx_name.lower()} of `{value.name}` has no counterpart in TensorRT",
            fix="cast it inside the model before export",
        )
    dims = value.type.tensor_type.shape.dim
    shape = tuple(
        dim.dim_value if dim.HasField("dim_value") else dim.dim_param or f"{value.name}.{axis}"
        for axis, dim in enumerate(dims)
    )
    return TensorSpec(value.name, dtype.name, shape)
