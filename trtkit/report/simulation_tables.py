"""The tables of a simulation, as printed by `trtkit simulate` and shown on its page."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from trtkit.report.tables import Column, Facts, Note, NumberCell, Table, numbers

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trtkit.report.tables import Part, Value
    from trtkit.simulation.report import Simulation
    from trtkit.simulation.summary import Summary


def simulation_tables(simulation: Simulation) -> Iterator[Part]:
    """Yield all tables of a simulation."""
    if simulation.tried:
        yield tried(simulation)
    yield facts(simulation.result)
    yield latencies(simulation.result)
    yield Note("\n".join(simulation.notes))


def facts(result: Summary) -> Facts:
    """Return the figures of a simulation."""
    dropped = f", {result.dropped} not served" if result.dropped else ""
    rows: dict[str, Value] = {
        "requests": f"{result.requests:,} in {result.duration_s:,.1f} s{dropped}",
        "throughput": f"{result.requests_per_second:.4g} requests/s, "
        f"{result.output_tokens_per_second:,.0f} output tokens/s",
        "GPUs": f"{result.gpus}, computing {result.utilization:.0%} of the time",
        "at once": f"{result.running:.1f} of a computing replica on average, at most {result.most_running}; "
        f"{result.waiting:.1f} waiting",
        "preemptions": f"{result.preemptions:,}",
        "caches": f"{result.waste:.1%} of reserved memory unused, {result.unread:.1%} for prompts not computed yet",
        "prompt tokens": f"{result.computed_tokens:,} computed; {result.shared:.1%} cached already, "
        f"{result.restored:.1%} in host memory",
    }
    if result.goodput is not None:
        share, per_s = result.goodput.share, result.goodput.requests_per_second
        rows["goodput"] = f"{share:.1%} of requests, {per_s:.4g} requests/s"
    if result.cost_per_month is not None:
        rows["cost a month"] = f"{result.cost_per_month:,.0f}"
    return Facts("", list(rows.items()))


def latencies(result: Summary) -> Table:
    """Return means and percentiles in ms."""
    rows: list[tuple[Value, ...]] = []
    for name, times in (("TTFT", result.ttft), ("TPOT", result.tpot), ("latency", result.latency)):
        rows.append((name, *map(_ms, (times.mean_ms, times.p50_ms, times.p90_ms, times.p99_ms))))
    gaps = result.itl
    rows.append(("gaps between tokens", _ms(gaps.mean_ms), _ms(gaps.p50_ms), "", _ms(gaps.p99_ms)))
    return Table("", (Column("ms"), *numbers("mean", "p50", "p90", "p99")), rows)


def tried(simulation: Simulation) -> Table:
    """Return the simulated numbers of replicas."""
    rows: list[tuple[Value, ...]] = []
    for attempt in simulation.tried:
        share = "" if attempt.goodput is None else f"{attempt.goodput.share:.1%}"
        cost = "" if attempt.cost_per_month is None else f"{attempt.cost_per_month:,.0f}"
        mark = " *" if attempt.gpus == simulation.result.gpus else ""
        times = _ms(attempt.ttft.p99_ms), _ms(attempt.tpot.p99_ms)
        rows.append((f"{attempt.gpus}{mark}", share, *times, f"{attempt.utilization:.0%}", cost))
    columns = numbers("goodput", "TTFT p99, ms", "TPOT p99, ms", "computing", "cost a month")
    return Table("", (Column("GPUs"), *columns), rows)


def _ms(value: float) -> NumberCell | None:
    if math.isnan(value):
        return None
    return NumberCell(value, f"{value:,.4g}" if value < 1000 else f"{value:,.0f}")
