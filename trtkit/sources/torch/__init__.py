"""PyTorch modules, exported to ONNX."""
