"""Plans for several GPUs: grids of tensor and pipeline parallel ranks, with their communication time."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from trtkit.lora.targets import adapter_bytes
from trtkit.models.parallel import SINGLE, Grid, prefill_parts, rank_spec
from trtkit.planning.gpus import GPUS_PER_NODE, Ring, known_links, send_s
from trtkit.planning.memory import Footprint, largest
from trtkit.planning.report import ContextPlan, GridPlan, SequencePlan
from trtkit.planning.roofline import floor
from trtkit.planning.shares import context_bytes, rank_bytes, tensor_share

if TYPE_CHECKING:
    from trtkit.planning.gpus import PlannedGpu
    from trtkit.planning.question import PlanningQuestion
    from trtkit.planning.roofline import Floor
    from trtkit.planning.shares import GridShare

_NETWORK = "infiniband"
_LONGEST = 1 << 20
"""Tokens of a sequence for a model without a limit."""


def plan_grids(question: PlanningQuestion, gpu: PlannedGpu) -> tuple[GridPlan, ...]:
    """Return the grids of 2 to 16 GPUs that can share the model, with the best for each number of GPUs marked.

    None for GPUs whose link is unknown.
    """
    if not gpu.link:
        return ()
    plans = [_plan(question, gpu, share) for share in question.shares if share.grid != SINGLE]
    return tuple(_marked(plan, [other for other in plans if other.gpus == plan.gpus]) for plan in plans)


def tensor_pays_up_to(question: PlanningQuestion, gpu: PlannedGpu) -> int | None:
    """Return the most GPUs with a faster decode step than half as many; None if the link is unknown."""
    if not gpu.link:
        return None
    shares = [share for share in question.shares if share.grid.pipeline == 1 and not share.is_special]
    seconds = [_times(question, gpu, share)[1] for share in shares]
    best = 0
    while best + 1 < len(shares) and seconds[best + 1] < seconds[best]:
        best += 1
    return shares[best].grid.tensor


def own_share(question: PlanningQuestion) -> GridShare:
    """Return one GPU's share in the model's own grid; experts are divided by tensor parallelism."""
    return next(share for share in question.shares if share.grid == replace(question.grid, expert=1))


def footprint_on(question: PlanningQuestion, share: GridShare) -> Footprint:
    """Return the model's memory on one GPU of a grid."""
    model, sizes = question.model, (share.weight_bytes + question.table_bytes, share.kv_per_token)
    adapters = adapter_bytes(question.spec, question.lora, model.dtype, rank_spec(question.spec, share.grid, 0))
    chunk = question.work.chunk
    footprint = Footprint(share.counts, *sizes, chunk, model.vocab_size, model.keeps_new, share.state_bytes)
    head, per_token = model.head_bytes, model.head_kv_bytes_per_token
    token_bytes = model.dtype.size_bytes(model.hidden_size) if share.grid.sequence else 0
    return replace(
        footprint,
        adapters=adapters,
        page_tokens=model.page_tokens,
        head=head,
        head_per_token=per_token,
        hidden_per_token=token_bytes,
        token_ranks=share.grid.tensor,
        packed=question.packed,
        keeps_new=footprint.keeps_new or share.grid.context > 1,
    )


def passed_s(least: Floor, stages: int, tokens: int) -> float:
    """Return the time of prompts in a pipeline, in parts that each read the weights. tokens: all new ones.

    least: floor of one GPU with all stages.
    """
    parts = prefill_parts(stages, tokens)
    return max((least.compute_s or 0.0) / parts, least.memory_s) / stages * (parts + stages - 1)


def link_seconds(
    question: PlanningQuestion, gpu: PlannedGpu, share: GridShare, tokens: int, rows: int
) -> tuple[float, int]:
    """Return the communication time of a step of `tokens` new tokens with logits of `rows`, and what each GPU sends.

    Tensor parallelism: all-reduces of hidden states after attention, feed-forward and embedding, and an all-gather of
    logits. Pipeline: hidden states from each stage to the next. If GPUs share tokens, reduce-scatters replace the
    all-reduces, all-gathers precede attention and feed-forward, and an all-reduce of the hidden states used for logits
    precedes the head. If they share cached positions, each layer with attention has an all-gather of heads, and an
    all-to-all of each GPU's results of them, which takes as long as an all-gather of as many bytes.
    """
    model, grid, links = question.model, share.grid, known_links().links
    link, network = links[gpu.link], links[_NETWORK]
    tokens += -tokens % grid.tensor if grid.sequence else 0
    hidden, logits = model.dtype.size_bytes(tokens * model.hidden_size), 4 * rows * model.vocab_size
    ring, last = Ring(link, network, grid.tensor), 0
    seconds = ring.all_gather_s(logits)
    if grid.sequence:
        halves, last = share.reduces + share.gathers, model.dtype.size_bytes(rows * model.hidden_size)
        seconds += halves * ring.all_gather_s(hidden) + ring.all_reduce_s(last)
    else:
        halves = 2 * share.reduces
        seconds += share.reduces * ring.all_reduce_s(hidden)
    exchanged = [tokens * size for size in context_bytes(question.spec, grid, model.dtype)]
    seconds += sum(ring.all_gather_s(size) for size in exchanged)
    sent = (halves * hidden + 2 * last + logits + sum(exchanged)) * (grid.tensor - 1) // grid.tensor
    for stage in range(1, grid.pipeline):
        is_near = (stage * grid.tensor) % GPUS_PER_NODE != 0
        seconds += send_s(link if is_near else network, hidden)
    return seconds, sent + (hidden if grid.pipeline > 1 else 0)


def _times(question: PlanningQuestion, gpu: PlannedGpu, share: GridShare) -> tuple[float, float]:
    """Return the TTFT of one request, and the time of a decode step.

    A prompt passes through the stages in parts, each of which reads the weights; a decode step passes as a whole.
    """
    work, stages = question.work, share.grid.pipeline
    first = passed_s(floor(share.counts, work.prefill(), gpu), stages, work.input_len)
    decode = floor(share.counts, work.decode(), gpu).seconds
    first_links, _ = link_seconds(question, gpu, share, work.input_len, 1)
    decode_links, _ = link_seconds(question, gpu, share, work.concurrency, work.concurrency)
    return first + first_links, decode + decode_links


def _plan(question: PlanningQuestion, gpu: PlannedGpu, share: GridShare) -> GridPlan:
    """Return the plan of a grid."""
    work, grid = question.work, share.grid
    footprint = footprint_on(question, share)
    need = footprint.need(work.concurrency, work.length)
    ttft, tpot = _times(question, gpu, share)
    links_s, sent = link_seconds(question, gpu, share, work.concurrency, work.concurrency)
    return GridPlan(
        sequence=_sequence_plan(question, gpu, share) if grid.sequence else None,
        context=_context_plan(question, gpu, share) if grid.context > 1 else None,
        tensor=grid.tensor,
        pipeline=grid.pipeline,
        gpus=grid.ranks,
        memory_per_gpu=need,
        fits=need.total <= gpu.memory_bytes,
        largest_batch=footprint.largest_batch(work.length, gpu.memory_bytes),
        ttft_s=ttft,
        tpot_s=tpot,
        links_s_per_step=links_s,
        sent_bytes_per_step=sent,
        decode_tokens_per_second=work.concurrency / tpot,
    )


def _sequence_plan(question: PlanningQuestion, gpu: PlannedGpu, share: GridShare) -> SequencePlan:
    """Return the savings from sharing tokens in the largest step: a packed call that reads a prompt chunk."""
    model, work = question.model, question.work
    without = replace(share, grid=replace(share.grid, sequence=False))
    tokens, rows = min(work.chunk, work.concurrency * work.length), work.concurrency
    whole_bytes, hidden_bytes = (
        model.dtype.size_bytes(grid_share.hidden_tokens(tokens) * model.hidden_size) for grid_share in (without, share)
    )
    before_s, before = link_seconds(question, gpu, without, tokens, rows)
    after_s, after = link_seconds(question, gpu, share, tokens, rows)
    return SequencePlan(
        tokens=tokens,
        hidden_bytes=hidden_bytes,
        hidden_bytes_without=whole_bytes,
        between_bytes=share.between * hidden_bytes,
        between_bytes_without=share.between * whole_bytes,
        sent_bytes=after,
        sent_bytes_without=before,
        links_s=after_s,
        links_s_without=before_s,
    )


def _context_plan(question: PlanningQuestion, gpu: PlannedGpu, share: GridShare) -> ContextPlan:
    """Return the savings and costs of sharing cached positions in a decode step."""
    batch, length = question.work.concurrency, question.work.length
    grid = replace(share.grid, context=1)
    model, spec = question.model, question.spec
    counts = tensor_share(question.counts, spec, Grid(grid.tensor), model.dtype)
    _, per_token = rank_bytes(model, spec, grid)
    without = replace(share, grid=grid, counts=counts, kv_per_token=per_token)
    limit = model.max_length or _LONGEST

    def step_s(share_of_grid: GridShare, tokens: int) -> float:
        links_s, _ = link_seconds(question, gpu, share_of_grid, batch, batch)
        return floor(share_of_grid.counts, (batch, 1, tokens), gpu).seconds + links_s

    last = largest(lambda tokens: step_s(share, tokens) >= step_s(without, tokens), limit)
    (after_s, after), (before_s, before) = (
        link_seconds(question, gpu, grid_share, batch, batch) for grid_share in (share, without)
    )
    read_s, read_s_without = (
        grid_share.counts.cache_bytes.at((batch, 1, length)) / gpu.bandwidth_bytes_per_s
        for grid_share in (share, without)
    )
    return ContextPlan(
        length=length,
        cache_bytes=batch * length * share.kv_per_token,
        cache_bytes_without=batch * length * per_token,
        read_s=read_s,
        read_s_without=read_s_without,
        sent_bytes=after,
        sent_bytes_without=before,
        links_s=after_s,
        links_s_without=before_s,
        step_s=step_s(share, length),
        step_s_without=step_s(without, length),
        pays_from=last + 1 if last < limit else None,
    )


def _marked(plan: GridPlan, others: list[GridPlan]) -> GridPlan:
    """Return a plan with the measures it is best at among fitting plans with as many GPUs."""
    if not plan.fits:
        return plan
    fitting = [other for other in others if other.fits]
    is_best = {
        "TTFT": plan.ttft_s == min(other.ttft_s for other in fitting),
        "TPOT": plan.tpot_s == min(other.tpot_s for other in fitting),
        "batch": plan.largest_batch == max(other.largest_batch for other in fitting),
    }
    return replace(plan, best_at=tuple(name for name, holds in is_best.items() if holds))
