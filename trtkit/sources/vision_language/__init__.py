"""Vision towers of vision-language models in torch, as ONNX export takes them: made of transformers' own modules."""
