"""Comparison of every implementation of a custom op with its reference."""
