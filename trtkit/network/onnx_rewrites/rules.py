"""All rules, by what they rewrite."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trtkit.network.onnx_rewrites.bits import RULES as BITS
from trtkit.network.onnx_rewrites.cumulative import RULES as CUMULATIVE
from trtkit.network.onnx_rewrites.determinant import RULES as DETERMINANT
from trtkit.network.onnx_rewrites.folding import RULES as FOLDING
from trtkit.network.onnx_rewrites.group_query import RULES as GROUP_QUERY
from trtkit.network.onnx_rewrites.integer_products import RULES as INTEGER_PRODUCTS
from trtkit.network.onnx_rewrites.misread import RULES as MISREAD
from trtkit.network.onnx_rewrites.nbits import RULES as NBITS
from trtkit.network.onnx_rewrites.ort_fused import RULES as ORT_FUSED
from trtkit.network.onnx_rewrites.pooling import RULES as POOLING
from trtkit.network.onnx_rewrites.qlinear import RULES as QLINEAR
from trtkit.network.onnx_rewrites.scatter import RULES as SCATTER
from trtkit.network.onnx_rewrites.warp import RULES as WARP
from trtkit.network.onnx_rewrites.zero_points import RULES as ZERO_POINTS

if TYPE_CHECKING:
    from trtkit.network.onnx_rewrites.rule import Rule

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
