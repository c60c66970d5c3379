"""All rules, by what they rewrite."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trtkit.network.onnx_rewrites import (
    bits,
    cumulative,
    determinant,
    folding,
    group_query,
    integer_products,
    misread,
    nbits,
    ort_fused,
    qlinear,
    scatter,
    warp,
    zero_points,
)

if TYPE_CHECKING:
    from trtkit.network.onnx_rewrites.rule import Rule

_FAMILIES = (
    integer_products,
    qlinear,
    zero_points,
    nbits,
    group_query,
    ort_fused,
    bits,
    scatter,
    cumulative,
    determinant,
    folding,
    warp,
    misread,
)


def rules() -> dict[tuple[str, str], Rule]:
    """Return the rules by domain and type."""
    return {(rule.domain, rule.op_type): rule for family in _FAMILIES for rule in family.RULES}
