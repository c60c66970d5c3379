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
    is_interleaved, stated = bool(layer.trt.interleaved), int(layer.trt.rotary_embedding_dim)
    once, dtype = layer.settings.memo.once, layer.input_dtype()
    wide = torch.float32 if dtype.itemsize < 4 else dtype

    def run(x: Tensor, cos: Tensor, sin: Tensor, positions: Tensor | None = None) -> Tensor:
        size = stated or x.shape[-1]
        cosines, sines = once(_angles, cos, sin, positions, wide)
        rotated = x[..., :size].to(wide)
        first, second = (rotated[..., ::2], rotated[..., 1::2]) if is_interleaved else rotated.chunk(2, -1)
        pairs = first * cosines - second * sines, first * sines + second * cosines
        turned = (torch.stack(pairs, -1).flatten(-2) if is_interleaved else torch.cat(pairs, -1)).to(dtype)
        return torch.cat((turned, x[..., size:]), -1) if size < x.shape[-1] else turned

    return run


def _angles(cos: Tensor, sin: Tensor, positions: Tensor | None, wide: torch.dtype) -> tuple[Tensor, Tensor]:
    """Return cosines and sines of each token, [B, 1, S, dim / 2] in the type to compute in."""
    if positions is not None:
        cos, sin = cos[positions], sin[positions]
    return cos.to(wide).unsqueeze(1), sin.to(wide).unsqueeze(1)
