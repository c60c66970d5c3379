"""The ONNX node test suite through TensorRT's parser, builder and the reference executor."""
