"""Ops written once, against `Ops`, for two writers: TensorRT's network API and ONNX function bodies."""

from trtkit.network.lowering.ops import Dim, Lowering, Ops, Value

__all__ = ["Dim", "Lowering", "Ops", "Value"]
