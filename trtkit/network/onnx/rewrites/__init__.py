"""Graph rewrites of ONNX forms that TensorRT's parser refuses or misreads into forms that it takes."""

from trtkit.network.onnx.rewrites.rewrite import rewrite

__all__ = ["rewrite"]
