"""Attention among one image's patches, with rotary embeddings by rows and columns: shared by Qwen's towers."""

from typing import Any

import torch


def rotary_table(inv_freq: torch.Tensor, positions: int) -> torch.Tensor:
    """Return cosines and sines of positions below `positions` [T, H / 2].

    Angles come from a table, so that no rounding of positions reaches them.
    """
    angles = torch.arange(positions)[:, None] * inv_freq
    return torch.cat([angles.cos(), angles.sin()], -1)


def turns_at(positions: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
    """Return cosines and sines [2, P, H / 2] for patches at rows and columns [P, 2]."""
    rotations = torch.nn.functional.embedding(positions, table)  # [P, 2, H / 2]: by row and column, cosines and sines
    return torch.stack([part.flatten(1) for part in rotations.chunk(2, -1)])


def attend(attention: Any, x: torch.Tensor, turns: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
    """Return self-attention of x [P, D] within one image."""
    q, k, v = attention.qkv(x).unflatten(-1, (3, attention.num_heads, -1)).permute(1, 2, 0, 3).unbind(0)  # [N, P, H]
    q, k = (_turn(item, turns) for item in (q, k))
    scores = q @ k.transpose(-1, -2) * attention.scaling
    scores = scores if mask is None else scores + mask
    output: torch.Tensor = attention.proj((scores.softmax(-1) @ v).transpose(0, 1).flatten(1))
    return output


def _turn(x: torch.Tensor, turns: torch.Tensor) -> torch.Tensor:
    """Rotate x [N, P, H] by cosines and sines [2, P, H / 2]: element i of the two halves is a pair."""
    first, second = x.chunk(2, -1)
    cos, sin = turns
    return torch.cat([first * cos - second * sin, second * cos + first * sin], -1)
