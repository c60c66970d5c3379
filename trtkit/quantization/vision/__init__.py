"""Vision models: an ONNX graph gets Q/DQ nodes. `model.py` leads through the folder."""
