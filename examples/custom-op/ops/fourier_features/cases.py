"""Inputs for testing every implementation."""

from __future__ import annotations

from trtkit.network.custom_op import Case

from .op import FourierFeatures

CASES = (
    Case(
        "odd sizes, dynamic batch",
        FourierFeatures(3),
        lambda generator: [generator.uniform(-1, 1, (7, 3)).astype("float32")],
        dynamic=("N",),
    ),
    Case(
        "one coordinate, high bands",
        FourierFeatures(8),
        lambda generator: [generator.uniform(-1, 1, (5, 1)).astype("float32")],
    ),
)
