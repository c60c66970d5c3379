"""Multi-scale deformable attention with one GridSample or gather per level."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trtkit.network.lowering.sampling import FeatureLevels, deformable_attention

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trtkit.network.lowering.ops import Ops, T

    from .op import MsDeformAttnAttributes


def lower(o: Ops[T], inputs: Sequence[T | None], attributes: MsDeformAttnAttributes, form: str) -> list[T]:
    """Compute from value [B, S, M, D], locations [B, Q, M, L, P, 2] and weights [B, Q, M, L, P]."""
    value, locations, weights = inputs
    assert value is not None
    assert locations is not None
    assert weights is not None
    _, _, heads, levels, points = weights.shape
    queries = o.size(weights, 1)
    locations = o.reshape(locations, [-1, queries, heads, levels * points, 2])
    weights = o.reshape(weights, [-1, queries, heads, levels * points])
    feature_levels = FeatureLevels(attributes.sizes(), (points,) * levels)
    return [deformable_attention(o, value, locations, weights, feature_levels, form)]
