"""Rotary embedding."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from trtkit.reference.layer import Layer, Op, Tensor

# Shapes: B sequences, S tokens, N heads, H head size.


def rotary_embedding(layer: Layer) -> Op:
    """Rotate pairs of the first `rotary_embedding_dim` elements (0: all) of x [B, N, S, H] by angles of the position.

    Inputs: x, cos, sin as [positions, dim / 2] with position ids [B, S], or [B, S, dim / 2] without. Pairs are
    neighbours when interleaved, else element i of the two halves.
    Source: https://docs.nvidia.com/deeplearning/tensorrt-rtx/latest/_static/operators/RotaryEmbedding.html
    """
    is_interleaved, stated = layer.flag("interleaved"), layer.number("rotary_embedding_dim")
    once, dtype = layer.settings.memo.once, layer.input_dtype()
    wide = torch.float32 if dtype.itemsize < 4 else dtype

    def run(x: Tensor, cos: Tensor, sin: Tensor, positions: Tensor | None = None) -> Tensor:
        size = stated or x.shape[-1]
        rotated = x[..., :size].to(wide)
        cosines, sines = once(_angles, cos, sin, positions, wide, is_interleaved)
        turned = rotated * cosines
        (first, second), (new_first, new_second) = (_pairs(item, is_interleaved) for item in (rotated, turned))
        new_first.addcmul_(second, sines, value=-1)
        new_second.addcmul_(first, sines)
        turned = turned.to(dtype)
        return torch.cat((turned, x[..., size:]), -1) if size < x.shape[-1] else turned

    return run


def _angles(
    cos: Tensor, sin: Tensor, positions: Tensor | None, dtype: torch.dtype, is_interleaved: bool
) -> tuple[Tensor, Tensor]:
    """Return each token's cosines for both elements of the pairs [B, 1, S, dim] and sines [B, 1, S, dim / 2]."""
    if positions is not None:
        cos, sin = cos[positions], sin[positions]
    cos, sin = (item.to(dtype).unsqueeze(1) for item in (cos, sin))
    return cos.repeat_interleave(2, -1) if is_interleaved else torch.cat((cos, cos), -1), sin


def _pairs(x: Tensor, is_interleaved: bool) -> tuple[Tensor, Tensor]:
    """Return views of the first and the second element of each pair."""
    if is_interleaved:
        return x[..., ::2], x[..., 1::2]
    first, second = x.chunk(2, -1)
    return first, second
