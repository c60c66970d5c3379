"""Weights as torch tensors, sharing their memory where torch has their type."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from trtkit.dtypes import INT4

if TYPE_CHECKING:
    from trtkit.network.layer_graph import Weights

# e2m1: sign, two exponent bits, one mantissa bit (OCP Microscaling Formats specification 1.0, section 5.3.3)
FP4_VALUES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0)


def weights_tensor(weights: Weights) -> torch.Tensor:
    """Return weights as a flat tensor: a view of their bytes, or unpacked for 4-bit types (int8, fp16)."""
    raw = torch.from_numpy(weights.raw)
    if weights.dtype.bits != INT4.bits:
        return raw.view(getattr(torch, weights.dtype.torch))
    nibbles = torch.stack((raw & 15, raw >> 4), dim=1).reshape(-1)[: weights.count]
    if weights.dtype == INT4:
        return ((nibbles ^ 8).to(torch.int8) - 8).contiguous()
    return torch.tensor(FP4_VALUES, dtype=torch.float16)[nibbles.long()]
