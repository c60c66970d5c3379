"""Gemma 3n and 4: several parallel hidden states per token, and per-layer vectors that gate each layer's output."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trtkit.dtypes import FP32, INT32
from trtkit.network.blocks.mixer import mixer_block
from trtkit.network.blocks.mixture import feed_forward_block
from trtkit.network.blocks.norm import norm_block
from trtkit.network.ops.activation import activation, tanh
from trtkit.network.ops.arithmetic import cast, maximum, mean, select, sqrt
from trtkit.network.ops.gather import embedding
from trtkit.network.ops.linear import matmul
from trtkit.network.ops.shape import concat, reshape, take, unsqueeze

if TYPE_CHECKING:
    from trtkit.models.attention import NormSpec
    from trtkit.models.feed_forward import PerLayerSpec, StreamsSpec
    from trtkit.models.spec import BlockSpec, DecoderSpec, LayerSpec
    from trtkit.network.blocks.mixer import Memory
    from trtkit.network.blocks.weights import Weights
    from trtkit.network.graph import Tensor

_LEAST_SQUARE = 1e-5
"""Lower bound of a projected state's mean square."""


def to_streams(weights: Weights, x: Tensor, spec: StreamsSpec) -> Tensor:
    """Return hidden states [B, S, P, D]: the first is x [B, S, D], the others are projections of its magnitude."""
    others = [_projected(weights, "in", index, x, _magnitude(x)) for index in range(spec.count - 1)]
    with x.graph.scope("streams"):
        return concat([unsqueeze(stream, 2) for stream in (x, *others)], 2)


def from_streams(weights: Weights, streams: Tensor, spec: StreamsSpec) -> Tensor:
    """Return the mean [B, S, D] of projections of hidden states [B, S, P, D], of the first one's magnitude."""
    first = _stream(streams, 0)
    others = [
        _projected(weights, "out", index, _stream(streams, index + 1), _magnitude(first))
        for index in range(spec.count - 1)
    ]
    with streams.graph.scope("streams"):
        total = first
        for stream in others:
            total = total + stream
        return total / spec.count


def streams_layer(
    weights: Weights,
    streams: Tensor,
    block: BlockSpec,
    layer: LayerSpec,
    spec: StreamsSpec,
    memory: Memory,
    vector: Tensor,
) -> tuple[Tensor, dict[str, Tensor]]:
    """Apply a layer to hidden states [B, S, P, D]; return the next ones, and the layer's updated caches by name."""
    norm, enter = block.norm, weights.tokens.enter
    assert layer.feed_forward is not None
    predicted = _predict(weights, streams, spec, norm)
    active = _stream(predicted, spec.active)
    normed = norm_block(weights, "attention_norm", active, norm)
    attended, present = mixer_block(weights, enter(normed), layer, memory)
    attended = active + norm_block(weights, "post_attention_norm", attended, norm)
    x = (attended + _laurel(weights, normed, norm)) / 2**0.5
    forwarded = feed_forward_block(weights, enter(norm_block(weights, "mlp_norm", x, norm)), layer.feed_forward)
    x = x + norm_block(weights, "post_mlp_norm", forwarded, norm)
    corrected = _correct(weights, predicted, x, spec, norm)
    gating = _stream(corrected, spec.active)
    with streams.graph.scope("streams"):
        gating = gating * weights.get("scale", 3) if spec.is_scaled else gating
    assert block.per_layer is not None
    added = unsqueeze(per_layer_part(weights, gating, vector, block.per_layer, norm), 2)
    first, rest = take(corrected, 2, 0, 1), take(corrected, 2, 1, spec.count - 1)
    return concat([first, rest + added], 2), present


def _projected(weights: Weights, name: str, index: int, x: Tensor, magnitude: Tensor) -> Tensor:
    """Return a projection of x [B, S, D] with another magnitude [B, S, 1]."""
    with x.graph.scope(f"streams/{name}"):
        y = cast(weights.linear(str(index), x), FP32)
        return cast(y * magnitude / sqrt(maximum(mean(y * y, axis=-1), _LEAST_SQUARE)), x.dtype)


def _magnitude(x: Tensor) -> Tensor:
    wide = cast(x, FP32)
    return sqrt(mean(wide * wide, axis=-1))


def _predict(weights: Weights, streams: Tensor, spec: StreamsSpec, norm: NormSpec) -> Tensor:
    """Return a layer's inputs: each state plus a mixture of all, weighted by the active one's router."""
    routed = _routed(weights, _stream(streams, spec.active), norm)
    with streams.graph.scope("streams"):
        mixture = reshape(weights.linear("predict", routed), (0, 0, spec.count, spec.count))
        return matmul(mixture, streams) + streams


def _correct(weights: Weights, predicted: Tensor, x: Tensor, spec: StreamsSpec, norm: NormSpec) -> Tensor:
    """Return the predicted states, each corrected by its share of the error of the active state's prediction."""
    routed = _routed(weights, x, norm)
    with x.graph.scope("streams"):
        shares = unsqueeze(weights.linear("correct", routed) + 1.0, 3)
        return unsqueeze(x - _stream(predicted, spec.active), 2) * shares + predicted


def _routed(weights: Weights, x: Tensor, norm: NormSpec) -> Tensor:
    """Return a router's outputs [B, S, P] for x [B, S, D]."""
    with x.graph.scope("streams"):
        normed = norm_block(weights, "router_norm", x, norm) * (1 / x.shape[-1])
        return cast(tanh(cast(weights.linear("router", normed), FP32)), x.dtype)


def _laurel(weights: Weights, x: Tensor, norm: NormSpec) -> Tensor:
    """Return x [B, S, D] plus a low-rank product of it, normed."""
    with x.graph.scope("laurel"):
        weights = weights.of_share
        return x + norm_block(weights, "norm", weights.linear("right", weights.linear("left", x)), norm)


def _stream(streams: Tensor, index: int) -> Tensor:
    """Return one hidden state [B, S, D]."""
    return reshape(take(streams, 2, index, 1), (0, 0, streams.shape[-1]))


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
    """Return a layer's addition [B, S, D] to x [B, S, D], gated by its vector [B, S, P]."""
    weights = weights.of_share
    with x.graph.scope("per_layer"):
        inner = activation(weights.linear("gate", x), spec.activation) * vector
        return norm_block(weights, "norm", weights.linear("down", inner), norm)
