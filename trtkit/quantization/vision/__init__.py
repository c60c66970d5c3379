"""Quantization of vision models: Q/DQ nodes in an ONNX graph. Start reading at `onnx_model.py`."""
