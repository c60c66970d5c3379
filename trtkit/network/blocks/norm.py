"""A norm as its spec says."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trtkit.network.ops.norm import layer_norm, rms_norm

if TYPE_CHECKING:
    from trtkit.models.attention import NormSpec
    from trtkit.network.blocks.weights import Weights
    from trtkit.network.graph import Tensor


def norm_block(weights: Weights, name: str, x: Tensor, spec: NormSpec, ranks: int = 1) -> Tensor:
    """Normalize the last axis of x [..., D] with the weights of `name` in the current scope.

    ranks: how many hold equal parts of the axis, for RMS norms.
    """
    with x.graph.scope(name):
        weight = weights.get("weight", x.rank) if spec.has_weight else None
        if spec.kind == "rms":
            return rms_norm(x, weight, spec.eps, spec.weight_offset, ranks)
        bias = weights.get("bias", x.rank) if spec.has_bias else None
        return layer_norm(x, weight, bias, spec.eps, spec.weight_offset)
