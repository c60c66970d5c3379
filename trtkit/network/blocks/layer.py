"""One decoder layer: attention and feed-forward, joined by residual sums."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trtkit.network.blocks.attention import Past, Positions, attention_block
from trtkit.network.blocks.mlp import feed_forward_block
from trtkit.network.blocks.norm import norm_block

if TYPE_CHECKING:
    from trtkit.models.spec import BlockSpec, LayerSpec
    from trtkit.network.blocks.weights import Weights
    from trtkit.network.graph import Tensor


def decoder_layer(
    weights: Weights, x: Tensor, specs: tuple[BlockSpec, LayerSpec], positions: Positions, past: Past
) -> tuple[Tensor, Past]:
    """Apply a layer to x [B, S, D]; return the next hidden state and the layer's updated cache."""
    block, layer = specs
    normed = x if block.is_post_norm else _norm(weights, "attention_norm", x, block)
    attended, present = attention_block(weights, normed, layer.attention, positions, past)
    attended = _norm(weights, "post_attention_norm", attended, block)
    if block.is_parallel:
        read = _norm(weights, "mlp_norm", x, block) if "mlp_norm" in block.norms else normed
        return x + (attended + feed_forward_block(weights, read, layer.feed_forward)), present
    x = _joined(weights, "attention_norm", x, attended, block)
    read = x if block.is_post_norm else _norm(weights, "mlp_norm", x, block)
    forwarded = _norm(weights, "post_mlp_norm", feed_forward_block(weights, read, layer.feed_forward), block)
    return _joined(weights, "mlp_norm", x, forwarded, block), present


def _joined(weights: Weights, norm: str, x: Tensor, part: Tensor, block: BlockSpec) -> Tensor:
    """Add a part to the residual stream."""
    scaled = part * block.residual_multiplier if block.residual_multiplier != 1 else part
    return _norm(weights, norm, x + scaled, block) if block.is_post_norm else x + scaled


def _norm(weights: Weights, name: str, x: Tensor, block: BlockSpec) -> Tensor:
    """Norm x where the layer has a norm of that name."""
    return norm_block(weights, name, x, block.norm) if name in block.norms else x
