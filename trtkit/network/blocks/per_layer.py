"""Vectors of each layer's own, which gate what the layer adds last (Gemma 3n and 4)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trtkit.dtypes import INT32
from trtkit.network.blocks.norm import norm_block
from trtkit.network.ops.activation import activation
from trtkit.network.ops.arithmetic import cast, select
from trtkit.network.ops.gather import embedding
from trtkit.network.ops.shape import reshape, take

if TYPE_CHECKING:
    from trtkit.models.attention import NormSpec
    from trtkit.models.per_layer import PerLayerSpec
    from trtkit.models.spec import DecoderSpec
    from trtkit.network.blocks.weights import Weights
    from trtkit.network.graph import Tensor


def per_layer_vectors(weights: Weights, tokens: Tensor, x: Tensor, model: DecoderSpec) -> list[Tensor]:
    """Return each layer's vectors [B, S, P] for tokens [B, S] and their embedding x [B, S, D]; none if it has none."""
    spec = model.block.per_layer
    if spec is None:
        return []
    by_layer = (0, 0, spec.layers, spec.size)
    with x.graph.scope("per_layer_table"):
        if spec.vocab_size < model.vocab_size:
            ids = cast(tokens, INT32)
            tokens = select(ids < spec.vocab_size, ids, 0)
        rows = reshape(embedding(tokens, weights.get("weight")) * spec.size**0.5, by_layer)
    projected = reshape(weights.linear("per_layer_projection", x) * x.shape[-1] ** -0.5, by_layer)
    joined = (norm_block(weights, "per_layer_norm", projected, model.block.norm) + rows) * 2**-0.5
    with x.graph.scope("per_layer"):
        return [reshape(take(joined, 2, index, 1), (0, 0, spec.size)) for index in range(spec.layers)]


def per_layer_part(weights: Weights, x: Tensor, vector: Tensor, spec: PerLayerSpec, norm: NormSpec) -> Tensor:
    """Return what a layer adds [B, S, D] to x [B, S, D], gated by its vector [B, S, P]."""
    with x.graph.scope("per_layer"):
        inner = activation(weights.linear("gate", x), spec.activation) * vector
        return norm_block(weights, "norm", weights.linear("down", inner), norm)
