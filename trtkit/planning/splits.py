"""What several GPUs would change: tensor and pipeline parallelism, as counts of one GPU's share."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from trtkit.planning.multilinear import Multilinear

if TYPE_CHECKING:
    from trtkit.planning.counts import Counts, Group
    from trtkit.planning.decoder_model import DecoderModel

# Groups that tensor parallelism divides; norms, element-wise layers and lookups are done by all.
_DIVIDED = ("q, k, v projections", "attention", "kv cache update", "output projection", "mlp", "experts", "lm head")
SIZES = (2, 4, 8)


def kv_share(model: DecoderModel, gpus: int) -> float:
    """Return the part of the cache that one of `gpus` keeps: whole key/value heads, repeated where there are fewer."""
    kept = sum(-(-layer.num_key_value_heads // gpus) * layer.head_dim for layer in model.attention)
    return kept / sum(layer.num_key_value_heads * layer.head_dim for layer in model.attention)


def tensor_share(counts: Counts, model: DecoderModel, gpus: int) -> Counts:
    """Return what one GPU of tensor parallelism computes and moves."""
    divided = sum(group.weight_bytes for group in counts.groups if group.name in _DIVIDED)
    saved = divided - divided // gpus
    cache = Multilinear(tuple(round(kv_share(model, gpus) * c) for c in counts.cache_bytes.coefficients))
    rest = tuple(a - b for a, b in zip(counts.fused_bytes.coefficients, counts.cache_bytes.coefficients, strict=True))
    fused = Multilinear((rest[0] - saved, *rest[1:])) + cache
    groups = tuple(_divided(group, gpus) if group.name in _DIVIDED else group for group in counts.groups)
    return replace(counts, groups=groups, fused_bytes=fused, cache_bytes=cache)


def split_weight_bytes(counts: Counts, model: DecoderModel, gpus: int) -> int:
    """Return the weights that one GPU of tensor parallelism keeps: its share of matrices, and all the rest."""
    divided = sum(group.weight_bytes for group in counts.groups if group.name in _DIVIDED)
    return model.weight_bytes - divided + -(-divided // gpus)


def all_reduce_bytes(model: DecoderModel, tokens: int, gpus: int) -> int:
    """Return what each GPU sends in a step of `tokens` new tokens: two ring all-reduces of hidden states a layer."""
    hidden = model.dtype.size_bytes(tokens * model.hidden_size)
    return 2 * model.layers * (2 * (gpus - 1) * hidden // gpus)


def _divided(group: Group, gpus: int) -> Group:
    """Return one GPU's part of a group's work."""
    products = {name: _over(poly, gpus) for name, poly in group.products.items()}
    weights = group.weight_bytes // gpus
    return replace(
        group,
        flops=_over(group.flops, gpus),
        products=products,
        bytes=_over(group.bytes, gpus),
        weight_bytes=weights,
    )


def _over(poly: Multilinear, gpus: int) -> Multilinear:
    return Multilinear(tuple(-(-coefficient // gpus) for coefficient in poly.coefficients))
