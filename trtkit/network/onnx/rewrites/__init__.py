"""Graph rewrites from ONNX forms that TensorRT's parser rejects or misreads to forms that it accepts."""

from trtkit.network.onnx.rewrites.rewrite import rewrite

__all__ = ["rewrite"]
