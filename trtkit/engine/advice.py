"""What to do about an ONNX operator that TensorRT refuses."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import onnx

# Operators with a known way round. Source: TensorRT's operator support matrix.
_BY_OPERATOR = {
    "NonZero": "its output's size depends on data: use Where or a mask, or give the result a fixed size with TopK",
    "Unique": "its output's size depends on data: compute it outside the engine",
    "Compress": "its output's size depends on data: use Where with a mask",
    "Bernoulli": "random sampling belongs outside the engine: make it an input",
    "Multinomial": "random sampling belongs outside the engine: make it an input",
    "Einsum": "write it as Transpose and MatMul",
}


def advice_for(node: onnx.NodeProto, opset: int) -> str:
    """Return what a user can do about `node`."""
    if node.op_type in _BY_OPERATOR:
        return _BY_OPERATOR[node.op_type]
    if node.domain not in {"", "ai.onnx"}:
        return (
            f"`{node.domain}` is no standard domain: give the model a local function (FunctionProto) of standard "
            "operators for it, or export without it"
        )
    if opset < 13:
        return f"export with a newer opset (this model has {opset}), which may write it in other operators"
    return "rewrite this part of the model with operators from TensorRT's support matrix"
