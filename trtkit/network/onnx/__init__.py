"""ONNX models before TensorRT's parser: read, checked, folded, rewritten, in the engine's precision."""
