"""Checkpoints whose linear layers were already quantized by other tools."""
