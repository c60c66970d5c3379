"""A simulation's figures: latencies, throughput, utilization, cost."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from trtkit.planning.question import HOURS_PER_MONTH
from trtkit.simulation.record import BINS, gap_percentile

if TYPE_CHECKING:
    from collections.abc import Mapping

    from trtkit.arrays import Array
    from trtkit.simulation.fleet import FleetOptions
    from trtkit.simulation.record import Record
    from trtkit.simulation.requests import Traffic

_CURVE = 100
"""Number of points of a distribution's curve."""


@dataclass(frozen=True)
class Distribution:
    """A distribution in milliseconds. curve: values at shares from 0 to 1, in equal steps."""

    mean_ms: float
    p50_ms: float
    p90_ms: float
    p99_ms: float
    curve: tuple[float, ...] = ()


@dataclass(frozen=True)
class Gaps:
    """Times between an answer's tokens, in milliseconds; percentiles to about 1 %."""

    mean_ms: float
    p50_ms: float
    p99_ms: float


@dataclass(frozen=True)
class Goodput:
    """Requests that meet all objectives: their share, and their number per second."""

    share: float
    requests_per_second: float


@dataclass(frozen=True)
class Moment:
    """Means over an interval that starts at `at_s`, over all replicas."""

    at_s: float
    waiting: float
    running: float


@dataclass(frozen=True)
class Summary:
    """A simulation's figures. dropped: requests that fit no replica, or whose deadline passed in the queue.

    utilization: the share of time that replicas compute. running: mean number of requests of a computing replica;
    most_running: the largest number. waste: the share of reserved cache memory that holds no token; unread: the part of
    it reserved for prompt tokens that are not computed yet. shared: the share of prompt tokens found in caches;
    restored: the share found in host memory. computed_tokens: of prompts, and of answers that are computed again.
    cost_per_month: None without a price.
    """

    requests: int
    dropped: int
    gpus: int
    duration_s: float
    requests_per_second: float
    output_tokens_per_second: float
    ttft: Distribution
    tpot: Distribution
    itl: Gaps
    latency: Distribution
    goodput: Goodput | None
    utilization: float
    running: float
    most_running: int
    waiting: float
    preemptions: int
    waste: float
    unread: float
    shared: float
    restored: float
    computed_tokens: int
    cost_per_month: float | None
    moments: tuple[Moment, ...] = ()


def summarize(
    traffic: Traffic, record: Record, options: FleetOptions, objectives: Mapping[str, float], price: float | None = None
) -> Summary:
    """Return the figures. objectives: limits in ms, by AIPerf's names. price: per GPU and hour."""
    is_done = np.isfinite(record.finished_s)
    ttft = (record.first_token_s - traffic.arrival_s)[is_done]
    latency = (record.finished_s - traffic.arrival_s)[is_done]
    outputs = traffic.output_tokens[is_done]
    has_gaps = outputs > 1
    tpot = (latency - ttft) / np.maximum(outputs - 1, 1)
    duration_s = record.last_s - float(traffic.arrival_s[0])
    per_s = 1 / duration_s if duration_s else 0.0
    gaps_s = float((latency - ttft)[has_gaps].sum() / max(1, (outputs - 1)[has_gaps].sum()))
    steps = record.steps
    bins_s = steps.bin_s
    engine_s = duration_s * options.engines
    times = {"ttft": ttft, "tpot": np.where(has_gaps, tpot, 0.0), "latency": latency}
    return Summary(
        requests=len(traffic),
        dropped=record.dropped,
        gpus=options.gpus,
        duration_s=duration_s,
        requests_per_second=int(is_done.sum()) * per_s,
        output_tokens_per_second=float(outputs.sum()) * per_s,
        ttft=_distribution(ttft),
        tpot=_distribution(tpot[has_gaps]),
        itl=Gaps(1e3 * gaps_s, *(1e3 * gap_percentile(steps.gaps, share) for share in (0.5, 0.99))),
        latency=_distribution(latency),
        goodput=_goodput(times, objectives, len(traffic), per_s),
        utilization=steps.busy_s / engine_s if engine_s else 0.0,
        running=steps.row_s / steps.busy_s if steps.busy_s else 0.0,
        most_running=steps.most_running,
        waiting=float(steps.waiting_s.sum()) / (bins_s * BINS),
        preemptions=record.preemptions,
        waste=1 - steps.used / steps.reserved if steps.reserved else 0.0,
        unread=steps.unread / steps.reserved if steps.reserved else 0.0,
        shared=record.shared_tokens / record.prompt_tokens if record.prompt_tokens else 0.0,
        restored=record.restored_tokens / record.prompt_tokens if record.prompt_tokens else 0.0,
        computed_tokens=record.computed_tokens,
        cost_per_month=None if price is None else options.gpus * price * HOURS_PER_MONTH,
        moments=tuple(
            Moment(index * bins_s, float(waiting) / bins_s, float(running) / bins_s)
            for index, (waiting, running) in enumerate(zip(steps.waiting_s, steps.running_s, strict=True))
        ),
    )


_METRICS = {"time_to_first_token": "ttft", "inter_token_latency": "tpot", "request_latency": "latency"}
"""Metrics that objectives may limit, by AIPerf's names."""


def _goodput(times: Mapping[str, Array], objectives: Mapping[str, float], count: int, per_s: float) -> Goodput | None:
    """Return how many requests meet all objectives; dropped ones do not."""
    if not objectives:
        return None
    is_good = np.ones(len(times["ttft"]), np.bool_)
    for name, limit in objectives.items():
        is_good &= 1e3 * times[_METRICS[name]] <= limit
    good = int(is_good.sum())
    return Goodput(good / count, good * per_s)


def _distribution(seconds: Array) -> Distribution:
    if not len(seconds):
        return Distribution(*(float("nan"),) * 4)
    shares = np.linspace(0, 1, _CURVE + 1)
    curve = 1e3 * np.quantile(seconds, shares)
    return Distribution(
        1e3 * float(seconds.mean()), float(curve[50]), float(curve[90]), float(curve[99]), tuple(curve.tolist())
    )
