"""The cost of a weight budget: weights beyond it are copied from the host in every step."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from trtkit.planning.gpus import known_links
from trtkit.planning.memory import LARGEST_BATCH, largest
from trtkit.planning.roofline import floor

if TYPE_CHECKING:
    from trtkit.planning.gpus import PlannedGpu
    from trtkit.planning.memory import Footprint
    from trtkit.planning.question import PlanningQuestion

_SHARES = (0, 25, 50, 75, 100)
"""Planned budgets, in percent of the weights."""


@dataclass(frozen=True, kw_only=True)
class StreamingPlan:
    """Results for a weight budget; weights beyond it are copied from the host in every step.

    stream_s_per_step: time of the copies. most_decode_tokens_per_second: with the largest batch, 0 if none fits.
    free_from_batch: the batch from which the GPU's work in a step takes longer than the copies; None if there is none.
    """

    budget_bytes: int
    streamed_bytes: int
    fits: bool
    stream_s_per_step: float
    tpot_s: float
    decode_tokens_per_second: float
    largest_batch: int
    most_decode_tokens_per_second: float
    free_from_batch: int | None


def plan_streaming(question: PlanningQuestion, gpu: PlannedGpu, footprint: Footprint) -> tuple[StreamingPlan, ...]:
    """Return budgets' results on a GPU, from none to all of the weights, and for the largest that fits the requests.

    footprint: with all weights on the GPU. Empty if the GPU's link to the host is unknown.
    """
    if not gpu.host_link:
        return ()
    work, weights = question.work, footprint.weights
    most = weights + gpu.memory_bytes - footprint.need(work.concurrency, work.length).total
    budgets = {weights * share // 100 for share in _SHARES} | ({most} if 0 <= most < weights else set())
    return tuple(_plan(question, gpu, replace(footprint, weights=budget), weights) for budget in sorted(budgets))


def _plan(question: PlanningQuestion, gpu: PlannedGpu, footprint: Footprint, weights: int) -> StreamingPlan:
    """Return one budget's results. A step takes as long as its copies or the GPU's work, whichever is longer."""
    work, streamed = question.work, weights - footprint.weights
    stream_s = 1e-9 * streamed / known_links().links[gpu.host_link].gb_per_s

    def gpu_s(batch: int) -> float:
        return floor(question.counts, work.decode(batch), gpu).seconds

    batch = footprint.largest_batch(work.length, gpu.memory_bytes)
    hidden = largest(lambda size: gpu_s(size) < stream_s, LARGEST_BATCH) + 1  # its step takes as long as the copy
    tpot_s = max(gpu_s(work.concurrency), stream_s)
    return StreamingPlan(
        budget_bytes=footprint.weights,
        streamed_bytes=streamed,
        fits=footprint.need(work.concurrency, work.length).total <= gpu.memory_bytes,
        stream_s_per_step=stream_s,
        tpot_s=tpot_s,
        decode_tokens_per_second=work.concurrency / tpot_s,
        largest_batch=batch,
        most_decode_tokens_per_second=batch / max(gpu_s(batch), stream_s) if batch else 0.0,
        free_from_batch=hidden if hidden <= LARGEST_BATCH else None,
    )
