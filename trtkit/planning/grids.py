"""What several GPUs give: grids of tensor and pipeline parallel ranks, with the time that their links take."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

from trtkit.errors import ConfigError
from trtkit.models.parallel import Grid, check_grid, rank_spec
from trtkit.models.spec import MoeSpec
from trtkit.models.weights import model_weights
from trtkit.planning.links import GPUS_PER_NODE, Ring, known_links, send_s
from trtkit.planning.memory import Footprint
from trtkit.planning.multilinear import Multilinear
from trtkit.planning.report import GridPlan
from trtkit.planning.roofline import floor

if TYPE_CHECKING:
    from trtkit.models.spec import DecoderSpec
    from trtkit.planning.counts import Counts, Group
    from trtkit.planning.gpus import PlannedGpu
    from trtkit.planning.question import Question

# Groups that tensor parallelism divides; norms, element-wise layers and lookups are done by all.
_DIVIDED = ("q, k, v projections", "attention", "kv cache update", "output projection", "mlp", "experts", "lm head")
SIZES = (2, 4, 8, 16)
_NETWORK = "infiniband"


def plan_grids(question: Question, gpu: PlannedGpu) -> tuple[GridPlan, ...]:
    """Return the grids of 2 to 16 GPUs that can share the model, with the best of each number of GPUs marked.

    None for GPUs whose link is not known.
    """
    if not gpu.link:
        return ()
    plans = [_plan(question, gpu, grid) for grid in _grids(question.spec)]
    return tuple(_marked(plan, [each for each in plans if each.gpus == plan.gpus]) for plan in plans)


def tensor_pays_up_to(question: Question, gpu: PlannedGpu) -> int | None:
    """Return the most GPUs that make a decode step faster than half of them do; None if the link is not known."""
    if not gpu.link:
        return None
    sizes = [1, *(grid.tensor for grid in _grids(question.spec) if grid.pipeline == 1)]
    seconds = [_times(question, gpu, Grid(size))[1] for size in sizes]
    best = 0
    while best + 1 < len(sizes) and seconds[best + 1] < seconds[best]:
        best += 1
    return sizes[best]


def tensor_share(counts: Counts, question: Question, grid: Grid) -> Counts:
    """Return what one GPU of a tensor parallel model computes and moves, if it did all layers."""
    gpus = grid.tensor
    if gpus == 1:
        return counts
    divided = sum(group.weight_bytes for group in counts.groups if group.name in _DIVIDED)
    saved = divided - divided // gpus
    own = rank_spec(question.spec, Grid(gpus), 0)
    kept = own.cached_elements / question.spec.cached_elements
    cache = Multilinear(tuple(round(kept * c) for c in counts.cache_bytes.coefficients))
    rest = tuple(a - b for a, b in zip(counts.fused_bytes.coefficients, counts.cache_bytes.coefficients, strict=True))
    fused = Multilinear((rest[0] - saved, *rest[1:])) + cache
    groups = tuple(_divided(group, gpus) if group.name in _DIVIDED else group for group in counts.groups)
    return replace(counts, groups=groups, fused_bytes=fused, cache_bytes=cache)


def rank_bytes(question: Question, grid: Grid) -> tuple[int, int]:
    """Return the weights of the rank with the most, and the cache of a token of the rank with the largest."""
    model, spec = question.model, question.spec
    first_ranks = range(0, grid.ranks, grid.stage_ranks)
    parts = [rank_spec(spec, grid, rank) for rank in first_ranks]
    parameters = max(_parameters(part) for part in parts)
    weights = -(-model.weight_bytes * parameters // _parameters(spec))
    return weights, model.kv_dtype.size_bytes(max(part.cached_elements for part in parts))


def link_seconds(question: Question, gpu: PlannedGpu, grid: Grid, tokens: int, rows: int) -> tuple[float, int]:
    """Return how long links take in a step of `tokens` new tokens, logits of `rows`, and what each GPU sends.

    Of tensor parallelism: all-reduces of hidden states after attention, feed-forward and embedding, and an all-gather
    of logits; of a pipeline: hidden states from each stage to the next.
    """
    model, link, network = question.model, known_links().links[gpu.link], known_links().links[_NETWORK]
    hidden, logits = model.dtype.size_bytes(tokens * model.hidden_size), 4 * rows * model.vocab_size
    ring = Ring(link, network, grid.tensor)
    reduces = 1 + sum(_reduces(layer.feed_forward) for layer in question.spec.layers)
    seconds = reduces * ring.all_reduce_s(hidden) + ring.all_gather_s(logits)
    sent = (2 * reduces * hidden + logits) * (grid.tensor - 1) // grid.tensor
    for stage in range(1, grid.pipeline):
        is_near = (stage * grid.tensor) % GPUS_PER_NODE != 0
        seconds += send_s(link if is_near else network, hidden)
    return seconds, sent + (hidden if grid.pipeline > 1 else 0)


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


def _times(question: Question, gpu: PlannedGpu, grid: Grid) -> tuple[float, float]:
    """Return TTFT of one request, and the time of a decode step."""
    work, share = question.work, tensor_share(question.counts, question, grid)
    first = floor(share, (1, work.input_len, work.input_len), gpu).seconds
    decode = floor(share, (work.concurrency, 1, work.mean_length), gpu).seconds
    first_links, _ = link_seconds(question, gpu, grid, work.input_len, 1)
    decode_links, _ = link_seconds(question, gpu, grid, work.concurrency, work.concurrency)
    return first + first_links, decode + decode_links


def _plan(question: Question, gpu: PlannedGpu, grid: Grid) -> GridPlan:
    """Return what a grid gives.

    A pipeline is full: each of its stages works on another batch, and keeps its layers' caches of all of them.
    """
    model, work = question.model, question.work
    share = tensor_share(question.counts, question, grid)
    weights, kv = rank_bytes(question, grid)
    footprint = Footprint(share, weights, kv, work.chunk, model.vocab_size, model.keeps_new)
    at_once = grid.pipeline * work.concurrency
    need = footprint.need(at_once, work.length)
    ttft, tpot = _times(question, gpu, grid)
    links_s, sent = link_seconds(question, gpu, grid, work.concurrency, work.concurrency)
    return GridPlan(
        tensor=grid.tensor,
        pipeline=grid.pipeline,
        gpus=grid.ranks,
        at_once=at_once,
        memory_per_gpu=need,
        fits=need.total <= gpu.memory_bytes,
        largest_batch=footprint.largest_batch(work.length, gpu.memory_bytes),
        ttft_s=ttft,
        tpot_s=tpot,
        links_s_per_step=links_s,
        sent_bytes_per_step=sent,
        decode_tokens_per_second=at_once / tpot,
    )


def _marked(plan: GridPlan, others: list[GridPlan]) -> GridPlan:
    """Return a plan with what it is the best at among those that fit, of as many GPUs."""
    fitting = [each for each in others if each.fits]
    if not plan.fits:
        return plan
    least, most = min(each.tpot_s for each in fitting), max(each.decode_tokens_per_second for each in fitting)
    best = [name for name, holds in (("TPOT", plan.tpot_s == least),
                                     ("tokens/s", plan.decode_tokens_per_second == most)) if holds]  # fmt: skip
    return replace(plan, best_at=tuple(best))


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
