"""All rules, by what they rewrite."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trtkit.network.onnx.rewrites.bits import RULES as BITS
from trtkit.network.onnx.rewrites.cumulative import RULES as CUMULATIVE
from trtkit.network.onnx.rewrites.determinant import RULES as DETERMINANT
from trtkit.network.onnx.rewrites.folding import RULES as FOLDING
from trtkit.network.onnx.rewrites.group_query import RULES as GROUP_QUERY
from trtkit.network.onnx.rewrites.integer_products import RULES as INTEGER_PRODUCTS
from trtkit.network.onnx.rewrites.misread import RULES as MISREAD
from trtkit.network.onnx.rewrites.nbits import RULES as NBITS
from trtkit.network.onnx.rewrites.ort_fused import RULES as ORT_FUSED
from trtkit.network.onnx.rewrites.pooling import RULES as POOLING
from trtkit.network.onnx.rewrites.qlinear import RULES as QLINEAR
from trtkit.network.onnx.rewrites.scatter import RULES as SCATTER
from trtkit.network.onnx.rewrites.warp import RULES as WARP
from trtkit.network.onnx.rewrites.zero_points import RULES as ZERO_POINTS

if TYPE_CHECKING:
    from trtkit.network.onnx.rewrites.rule import Rule

_FAMILIES = (
    BITS,
    CUMULATIVE,
    DETERMINANT,
    FOLDING,
    GROUP_QUERY,
    INTEGER_PRODUCTS,
    MISREAD,
    NBITS,
    ORT_FUSED,
    POOLING,
    QLINEAR,
    SCATTER,
    WARP,
    ZERO_POINTS,
)


def rules() -> dict[tuple[str, str], Rule]:
    """Return the rules by domain and type."""
    return {(rule.domain, rule.op_type): rule for family in _FAMILIES for rule in family}
