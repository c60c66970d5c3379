"""Checkpoints whose linear layers are quantized already, by the tools that made them."""
