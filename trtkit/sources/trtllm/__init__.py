"""Checkpoints as TensorRT-LLM writes them."""
