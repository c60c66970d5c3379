"""trtkit: turn models into TensorRT engines, prove them right, measure them and deploy them."""

__version__ = "0.1.0"
