"""Rewrites against ONNX Runtime on the original model."""
