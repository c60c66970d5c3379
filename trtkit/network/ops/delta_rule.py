"""The gated delta rule for all new tokens of a call at once."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trtkit.network.ops.decay import channel_decays, decayed_sums, decays
from trtkit.network.ops.linear import matmul

if TYPE_CHECKING:
    from trtkit.network.graph import Tensor
    from trtkit.network.ops.attention import QKV
    from trtkit.network.ops.chunk import Masks


def gated_delta_rule(qkv: QKV, g: Tensor, beta: Tensor, state: Tensor, masks: Masks) -> tuple[Tensor, Tensor]:
    """Return what each token reads [B, H, S, E] and the state after the last one, all in fp32.

    Each token t turns the state M to `M exp(g) + k (beta (v - (M exp(g))^T k))^T` and reads `M^T q`.
    qkv: queries and keys [B, H, S, D], scaled and of length 1, and values [B, H, S, E]. g: the logarithm of the
    decay [B, H, S, 1], or of each channel's [B, H, S, D]. beta: [B, H, S, 1]; both are 0 for padding, which so
    leaves the state as it is. state: [B, H, D, E]. masks: with levels if channels have their own decays.
    Source: https://arxiv.org/abs/2412.06464, section 3.3.
    """
    q, k, v = qkv
    left = decays(g, masks) if g.shape[3] == 1 else channel_decays(g, masks)
    inverse = unit_lower_inverse(left.scores(k * beta, k), masks)
    learned = matmul(inverse, v * beta) - matmul(matmul(inverse, k * beta * left.of_state), state)
    return decayed_sums((q, k, learned), left, state)


def unit_lower_inverse(lower: Tensor, masks: Masks) -> Tensor:
    """Return the inverse of I + the strictly lower part of a matrix: lower [B, H, S, S], in fp32.

    Blocks on the diagonal are inverted first, then joined two by two: the inverse of [[a, 0], [c, b]] has -b' c a'
    below a' and b'. A product of powers of the matrix would take as many products, but its terms outgrow their sum: of
    64 equal keys, they have 18 digits.
    """
    inverse = masks.identity - lower * masks.merges[0]
    for mask in masks.merges[1:]:
        inverse = inverse - matmul(matmul(inverse, lower * mask), inverse)
    return inverse
