"""What ONNX Runtime's optimizer fuses, taken apart."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trtkit.network.foreign import Refusal
from trtkit.network.onnx.rewrites.rule import MICROSOFT, Node, Rule, Written

if TYPE_CHECKING:
    from trtkit.network.lowering.onnx_value import OnnxValue
    from trtkit.network.onnx.rewrites.writer import Writer


def bias_gelu(o: Writer, node: Node) -> Written:
    """Write Gelu(x + bias)."""
    node.check_all_read()
    return [_gelu(o, node.x(0) + node.x(1))]


def gelu(o: Writer, node: Node) -> Written:
    """Write x / 2 (1 + erf(x / sqrt 2))."""
    node.check_all_read()
    return [_gelu(o, node.x(0))]


def fast_gelu(o: Writer, node: Node) -> Written:
    """Write Gelu's approximation by tanh of x, plus a bias where there is one."""
    node.check_all_read()
    bias = node.optional(1)
    x = node.x(0) if bias is None else node.x(0) + bias
    inner = (x + x * x * x * 0.044715) * 0.7978845608028654
    return [x * 0.5 * (o.unary("tanh", inner) + 1.0)]


def quick_gelu(o: Writer, node: Node) -> Written:
    """Write x sigmoid(alpha x)."""
    alpha = node.number("alpha", 1.702)
    node.check_all_read()
    return [node.x(0) * o.unary("sigmoid", node.x(0) * alpha)]


def _gelu(o: Writer, x: OnnxValue) -> OnnxValue:
    return x * 0.5 * (o.call("Erf", [x * 0.7071067811865476]) + 1.0)


def skip_layer_norm(o: Writer, node: Node) -> Written:
    """Write LayerNormalization of input + skip + bias; the sum is the fourth output."""
    epsilon = node.number("epsilon", 1e-12)
    node.check_all_read()
    if any(node.is_used(index) for index in (1, 2)):
        raise Refusal("outputs 1 and 2 (mean and deviation, for training) are used", "export the model for inference")
    total = node.x(0) + node.x(1)
    bias = node.optional(4)
    total = total if bias is None else total + bias
    beta = node.optional(3)
    inputs = [total, node.x(2)] + ([] if beta is None else [beta])
    normalized = o.call("LayerNormalization", inputs, epsilon=epsilon)
    return [normalized, None, None, total][: len(node.outputs)]


def fused_matmul(o: Writer, node: Node) -> Written:
    """Write alpha A B, either transposed in its last two axes."""
    alpha, turns = node.number("alpha", 1.0), [node.number(name, 0) for name in ("transA", "transB")]
    for name in ("transBatchA", "transBatchB"):
        node.only(name, (0,), 0)
    node.check_all_read()
    a, b = (_turned(o, node.x(index)) if turn else node.x(index) for index, turn in enumerate(turns))
    product = o.matmul(a, b)
    return [product if alpha == 1.0 else product * alpha]


def _turned(o: Writer, x: OnnxValue) -> OnnxValue:
    order = list(range(len(x.shape)))
    return o.transpose(x, [*order[:-2], order[-1], order[-2]]) if len(order) > 1 else x


def fused_conv(o: Writer, node: Node) -> Written:
    """Write Conv, plus a tensor where there is one, then an activation."""
    activation = node.only("activation", ("", "Relu", "Sigmoid", "Tanh", "LeakyRelu", "Clip", "HardSigmoid"), "")
    parameters = node.numbers("activation_params", ())
    inputs = [node.x(0), node.x(1)] + ([node.x(2)] if node.input(2) else [])
    kept = {name: value for name, value in node.attributes.items() if not name.startswith("activation")}
    y = o.call("Conv", inputs, **kept)
    y = y + node.x(3) if node.input(3) else y
    if activation == "Clip":
        return [o.clip(y, *parameters)]
    names = {"LeakyRelu": ("alpha",), "HardSigmoid": ("alpha", "beta")}.get(activation, ())
    attributes = dict(zip(names, parameters, strict=False))
    return [o.call(activation, [y], **attributes) if activation else y]


RULES = (
    Rule(MICROSOFT, "BiasGelu", bias_gelu),
    Rule(MICROSOFT, "Gelu", gelu),
    Rule(MICROSOFT, "FastGelu", fast_gelu),
    Rule(MICROSOFT, "QuickGelu", quick_gelu),
    Rule(MICROSOFT, "SkipLayerNormalization", skip_layer_norm),
    Rule(MICROSOFT, "FusedMatMul", fused_matmul),
    Rule(MICROSOFT, "FusedConv", fused_conv),
)
