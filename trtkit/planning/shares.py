"""What one GPU of each grid that can share a model holds, computes and moves; the same for all GPU models."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from trtkit.errors import ConfigError
from trtkit.models.parallel import SINGLE, Grid, check_grid, rank_spec
from trtkit.models.spec import MoeSpec
from trtkit.models.weights import model_weights
from trtkit.planning.multilinear import Multilinear

if TYPE_CHECKING:
    from trtkit.models.spec import DecoderSpec
    from trtkit.planning.counts import Counts, Group
    from trtkit.planning.decoder_model import DecoderModel

# Groups that tensor parallelism divides; norms, element-wise layers and lookups are done by all.
_DIVIDED = ("q, k, v projections", "attention", "kv cache update", "output projection", "mlp", "experts", "lm head")
SIZES = (2, 4, 8, 16)


@dataclass(frozen=True)
class GridShare:
    """One GPU's share of a model on a grid.

    counts: as if it did all layers, with its share of each. weight_bytes: of the rank with the most. kv_per_token: of
    the rank with the largest caches, in bytes. reduces: all-reduces of a step.
    """

    grid: Grid
    counts: Counts
    weight_bytes: int
    kv_per_token: int
    reduces: int


def grid_shares(model: DecoderModel, counts: Counts, spec: DecoderSpec, own: Grid) -> tuple[GridShare, ...]:
    """Return the shares of one GPU, of the model's own grid, and of those of 2 to 16 GPUs that can share the model."""
    by_tensor: dict[int, Counts] = {}
    shares = []
    grids = {SINGLE, Grid(own.tensor, pipeline=own.pipeline), *_grids(spec)}
    for grid in sorted(grids, key=lambda each: (each.ranks, each.tensor)):
        if grid.tensor not in by_tensor:
            by_tensor[grid.tensor] = tensor_share(counts, spec, grid.tensor)
        weights, cache = rank_bytes(model, spec, grid)
        reduces = 1 + sum(_reduces(layer.feed_forward) for layer in spec.layers)
        shares.append(GridShare(grid, by_tensor[grid.tensor], weights, cache, reduces))
    return tuple(shares)


def tensor_share(counts: Counts, spec: DecoderSpec, gpus: int) -> Counts:
    """Return what one GPU of a tensor parallel model computes and moves, if it did all layers."""
    if gpus == 1:
        return counts
    divided = sum(group.weight_bytes for group in counts.groups if group.name in _DIVIDED)
    saved = divided - divided // gpus
    own = rank_spec(spec, Grid(gpus), 0)
    kept = own.cached_elements / spec.cached_elements
    cache = Multilinear(tuple(round(kept * c) for c in counts.cache_bytes.coefficients))
    rest = tuple(a - b for a, b in zip(counts.fused_bytes.coefficients, counts.cache_bytes.coefficients, strict=True))
    fused = Multilinear((rest[0] - saved, *rest[1:])) + cache
    groups = tuple(_divided(group, gpus) if group.name in _DIVIDED else group for group in counts.groups)
    return replace(counts, groups=groups, fused_bytes=fused, cache_bytes=cache)


def rank_bytes(model: DecoderModel, spec: DecoderSpec, grid: Grid) -> tuple[int, int]:
    """Return the weights of the rank with the most, and the cache of a token of the rank with the largest."""
    first_ranks = range(0, grid.ranks, grid.stage_ranks)
    parts = [rank_spec(spec, grid, rank) for rank in first_ranks]
    parameters = max(_parameters(part) for part in parts)
    weights = -(-model.weight_bytes * parameters // _parameters(spec))
    return weights, model.kv_dtype.size_bytes(max(part.cached_elements for part in parts))


def _reduces(feed_forward: object) -> int:
    """Return how many all-reduces a layer has."""
    is_apart = isinstance(feed_forward, MoeSpec) and feed_forward.shared is not None and feed_forward.shared.has_bias
    return 3 if is_apart else 2


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
