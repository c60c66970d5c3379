"""What one GPU holds, computes and moves in each grid that can share a model; the same for all GPU models."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from trtkit.dtypes import FP32
from trtkit.errors import ConfigError
from trtkit.models.feed_forward import MoeSpec
from trtkit.models.parallel import SINGLE, Grid, check_grid, rank_spec
from trtkit.models.weights import model_weights
from trtkit.planning.counts import PAGE_COPIES, WINDOW_COPIES, Multilinear

if TYPE_CHECKING:
    from trtkit.dtypes import DType
    from trtkit.models.spec import BlockSpec, DecoderSpec, LayerSpec
    from trtkit.planning.counts import GroupCounts, NetworkCounts
    from trtkit.planning.decoder_model import DecoderModel

# Groups that tensor parallelism divides; norms, element-wise layers and lookups run on all ranks.
_DIVIDED = (
    "q, k, v projections",
    "latent expansion",
    "attention",
    "kv cache update",
    PAGE_COPIES,
    WINDOW_COPIES,
    "output projection",
    "recurrent layers",
    "mlp",
    "experts",
    "lm head",
)
SIZES = (2, 4, 8, 16)


@dataclass(frozen=True)
class GridShare:
    """One GPU's share of a model on a grid.

    counts: as if it computed all layers, with its share of each. weight_bytes: of the rank with the most. kv_per_token,
    state_bytes: of the rank with the largest caches, and with the largest states. reduces: all-reduces per step, or
    reduce-scatters if ranks share tokens; then `gathers` of its blocks begin with an all-gather. between: number of
    hidden states per token that a step's norms and residual sums write.
    """

    grid: Grid
    counts: NetworkCounts
    weight_bytes: int
    kv_per_token: int
    state_bytes: int
    reduces: int
    gathers: int
    between: int

    @property
    def is_special(self) -> bool:
        """Whether GPUs share tokens or cached positions, as only the config's own grid does."""
        return self.grid.sequence or self.grid.context > 1

    def hidden_tokens(self, tokens: int) -> int:
        """Return for how many of a step's tokens a GPU has hidden states between blocks."""
        return -(-tokens // self.grid.tensor) if self.grid.sequence else tokens


def grid_shares(model: DecoderModel, counts: NetworkCounts, spec: DecoderSpec, own_grid: Grid) -> tuple[GridShare, ...]:
    """Return one GPU's share for a single GPU, the model's own grid, and the grids of 2 to 16 GPUs that fit it."""
    by_ranks: dict[tuple[int, int], NetworkCounts] = {}
    shares = []
    grids = {SINGLE, replace(own_grid, expert=1), *_grids(spec)}
    reduces = 1 + sum(reduces_of(layer) for layer in spec.layers)
    gathers = sum(gathers_of(layer, spec.block) for layer in spec.layers)
    between = sum(between_blocks_of(layer, spec.block) for layer in spec.layers)
    for grid in sorted(
        grids, key=lambda candidate: (candidate.ranks, candidate.tensor, candidate.sequence, candidate.context)
    ):
        ranks = grid.tensor, grid.context
        if ranks not in by_ranks:
            by_ranks[ranks] = tensor_share(counts, spec, Grid(grid.tensor, context=grid.context), model.dtype)
        weights, cache = rank_bytes(model, spec, grid)
        states = max(part.state_bytes(model.dtype) for part in _stages(spec, grid))
        shares.append(GridShare(grid, by_ranks[ranks], weights, cache, states, reduces, gathers, between))
    return tuple(shares)


def tensor_share(counts: NetworkCounts, spec: DecoderSpec, grid: Grid, dtype: DType) -> NetworkCounts:
    """Return what one GPU of a tensor parallel model computes and moves, as if it had all layers.

    dtype: the network's. grid: without stages. GPUs that share positions attend to their part with all heads, which
    takes as many products.
    """
    if (gpus := grid.tensor) == 1:
        return counts
    divided = sum(group.weight_bytes for group in counts.groups if group.name in _DIVIDED)
    saved = divided - divided // gpus
    own_spec = rank_spec(spec, grid, 0)
    kept = own_spec.cached_elements / grid.context / spec.cached_elements if spec.cached_elements else 1.0
    cache, copied, largest = (
        Multilinear(tuple(round(kept * c) for c in poly.coefficients))
        for poly in (counts.cache_bytes, counts.copied_bytes, counts.largest_copy)
    )
    rest = tuple(a - b for a, b in zip(counts.fused_bytes.coefficients, counts.cache_bytes.coefficients, strict=True))
    states = 2 * (spec.state_bytes(dtype) - own_spec.state_bytes(dtype))  # each row's are read and written
    fused = Multilinear((rest[0] - saved, *rest[1:4], rest[4] - states, *rest[5:])) + cache
    groups = tuple(_divided(group, gpus) if group.name in _DIVIDED else group for group in counts.groups)
    mixture = counts.mixture and replace(counts.mixture, copied_bytes=counts.mixture.copied_bytes // gpus)
    share = replace(counts, groups=groups, fused_bytes=fused, cache_bytes=cache, mixture=mixture, active=None)
    return replace(share, copied_bytes=copied, largest_copy=largest)


def rank_bytes(model: DecoderModel, spec: DecoderSpec, grid: Grid) -> tuple[int, int]:
    """Return the weights of the largest rank, and the cache per token of the rank with the largest cache.

    Ranks that share positions hold a part of each token's cache on average.
    """
    parts = _stages(spec, grid)
    parameters = max(_parameters(part) for part in parts)
    weights = -(-model.weight_bytes * parameters // _parameters(spec))
    return weights, -(-model.kv_dtype.size_bytes(max(part.cached_elements for part in parts)) // grid.context)


def context_bytes(spec: DecoderSpec, grid: Grid, dtype: DType) -> list[int]:
    """Return the extra bytes per token that ranks sharing positions exchange, by collective; empty for other ranks.

    In each layer, queries, and keys and values that are not replicated on ranks, are gathered in the network's type,
    and each rank's results of all heads, with two numbers each, are merged in fp32.
    """
    if grid.context == 1:
        return []
    exchanged = []
    for attention in rank_spec(spec, Grid(grid.tensor, context=grid.context), 0).attentions:
        brought = attention.num_key_value_heads
        brought = 0 if len(attention.context_heads) == brought else len(attention.caches) * brought
        heads = attention.num_attention_heads + brought
        exchanged.append(dtype.size_bytes(grid.context * heads * attention.head_dim))
        exchanged.append(FP32.size_bytes(attention.attending_heads * (attention.used_value_size + 2)))
    return exchanged


def _stages(spec: DecoderSpec, grid: Grid) -> list[DecoderSpec]:
    """Return the spec of the first rank of each pipeline stage."""
    return [rank_spec(spec, grid, rank) for rank in range(0, grid.ranks, grid.stage_ranks)]


def reduces_of(layer: LayerSpec) -> int:
    """Return the number of all-reduces in a layer."""
    moe = layer.feed_forward
    is_apart = (
        isinstance(moe, MoeSpec) and moe.shared is not None and not (moe.joins_shared and moe.separate_norm is None)
    )
    return (layer.mixer is not None) + (layer.parallel_mixer is not None) + (moe is not None) + is_apart


def gathers_of(layer: LayerSpec, block: BlockSpec) -> int:
    """Return how often a layer's blocks read hidden states that no other of its blocks reads."""
    moe = layer.feed_forward
    reads_both = isinstance(moe, MoeSpec) and moe.separate_norm is not None
    is_read_twice = block.is_parallel and layer.mixer is not None and "mlp_norm" not in block.norms
    return (layer.mixer is not None) + (moe is not None and not is_read_twice) + reads_both


def between_blocks_of(layer: LayerSpec, block: BlockSpec) -> int:
    """Return the number of norms and residual sums in a layer."""
    sums = (layer.mixer is not None) + (layer.feed_forward is not None)
    return sums + sum(layer.has_norm(name) for name in block.norms)


def _grids(spec: DecoderSpec) -> list[Grid]:
    """Return the grids that can share the model."""
    pairs = [(tensor, gpus // tensor) for gpus in SIZES for tensor in (1, *SIZES) if tensor <= gpus]
    return [grid for tensor, pipeline in pairs if _can_share(spec, grid := Grid(tensor, pipeline=pipeline))]


def _can_share(spec: DecoderSpec, grid: Grid) -> bool:
    try:
        check_grid(spec, grid, "")
    except ConfigError:
        return False
    return True


def _parameters(spec: DecoderSpec) -> int:
    return sum(math.prod(weight.shape) for weight in model_weights(spec))


def _divided(group: GroupCounts, gpus: int) -> GroupCounts:
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
