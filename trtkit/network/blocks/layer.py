"""One decoder layer: a mixer and feed-forward, joined by residual sums."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trtkit.network.blocks.attention import cross_block
from trtkit.network.blocks.mixer import Attending, mixer_block
from trtkit.network.blocks.mixture import feed_forward_block
from trtkit.network.blocks.norm import norm_block
from trtkit.network.blocks.streams import per_layer_part, streams_layer

if TYPE_CHECKING:
    from trtkit.models.spec import BlockSpec, LayerSpec
    from trtkit.network.blocks.mixer import Memory
    from trtkit.network.blocks.weights import Weights
    from trtkit.network.graph import Tensor


def decoder_layer(
    weights: Weights,
    x: Tensor,
    block: BlockSpec,
    layer: LayerSpec,
    memory: Memory | None,
    vector: Tensor | None = None,
) -> tuple[Tensor, dict[str, Tensor]]:
    """Apply a layer to x [B, S, D]; return the next hidden states, and the layer's updated caches or states by name.

    vector: the layer's own [B, S, P], if it has one. With several streams, x is [B, S, streams, D].
    """
    if block.streams is not None and vector is not None and memory is not None:
        return streams_layer(weights, x, block, layer, block.streams, memory, vector)
    x, present = _joined_parts(weights, x, block, layer, memory)
    if block.per_layer is not None and vector is not None:
        x = x + per_layer_part(weights, x, vector, block.per_layer, block.norm)
    return (x * weights.get("scalar", x.rank) if block.has_scalar else x), present


def _joined_parts(
    weights: Weights, x: Tensor, block: BlockSpec, layer: LayerSpec, memory: Memory | None
) -> tuple[Tensor, dict[str, Tensor]]:
    """Apply mixer and feed-forward; the layer has at least one of them."""
    present: dict[str, Tensor] = {}
    enter = weights.tokens.enter
    if layer.mixer is not None and memory is not None:
        normed = enter(x if block.is_post_norm else _norm(weights, "attention_norm", x, block))
        attended, present = mixer_block(weights, normed, layer, memory)
        attended = _norm(weights, "post_attention_norm", attended, block)
        if block.is_parallel and layer.feed_forward is not None:
            read = enter(_norm(weights, "mlp_norm", x, block)) if "mlp_norm" in block.norms else normed
            return x + (attended + feed_forward_block(weights, read, layer.feed_forward, x)), present
        x = _joined(weights, "attention_norm", x, attended, block)
    if layer.cross is not None and isinstance(memory, Attending) and memory.encoded:
        x = x + cross_block(weights, _norm(weights, "cross_norm", x, block), layer.cross, memory.encoded)
    if layer.feed_forward is None:
        return x, present
    read = enter(x if block.is_post_norm else _norm(weights, "mlp_norm", x, block))
    forwarded = _norm(weights, "post_mlp_norm", feed_forward_block(weights, read, layer.feed_forward, x), block)
    return _joined(weights, "mlp_norm", x, forwarded, block), present


def _joined(weights: Weights, norm: str, x: Tensor, part: Tensor, block: BlockSpec) -> Tensor:
    """Add a part to the residual stream."""
    scaled = part * block.residual_multiplier if block.residual_multiplier != 1 else part
    return _norm(weights, norm, x + scaled, block) if block.is_post_norm else x + scaled


def _norm(weights: Weights, name: str, x: Tensor, block: BlockSpec) -> Tensor:
    """Normalize x if the layer has a norm of that name."""
    return norm_block(weights, name, x, block.norm) if name in block.norms else x
