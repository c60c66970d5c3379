"""A simulation as tables for people."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from rich.table import Table
from rich.text import Text

from trtkit.cli.tables import pairs

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.console import RenderableType

    from trtkit.simulation.report import Simulation
    from trtkit.simulation.summary import Distribution, Summary


def simulation_tables(simulation: Simulation) -> Iterator[RenderableType]:
    """Yield all tables of a simulation."""
    result = simulation.result
    if simulation.tried:
        yield _tried(simulation)
    facts = pairs()
    for name, text in _facts(result).items():
        facts.add_row(name, text)
    yield facts
    yield _latencies(result)
    yield Text("\n".join(simulation.notes))


def _facts(result: Summary) -> dict[str, str]:
    dropped = f", {result.dropped} not served" if result.dropped else ""
    rows = {
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
    return rows


def _latencies(result: Summary) -> Table:
    table = Table("ms", box=None, pad_edge=False, header_style="cyan")
    for name in ("mean", "p50", "p90", "p99"):
        table.add_column(name, justify="right")
    for name, distribution in (("TTFT", result.ttft), ("TPOT", result.tpot), ("latency", result.latency)):
        table.add_row(
            name, *map(_ms, (distribution.mean_ms, distribution.p50_ms, distribution.p90_ms, distribution.p99_ms))
        )
    table.add_row("gaps between tokens", _ms(result.itl.mean_ms), _ms(result.itl.p50_ms), "", _ms(result.itl.p99_ms))
    return table


def _tried(simulation: Simulation) -> Table:
    """Return the numbers of replicas that were simulated."""
    table = Table("GPUs", box=None, pad_edge=False, header_style="cyan")
    for name in ("goodput", "TTFT p99, ms", "TPOT p99, ms", "computing", "cost a month"):
        table.add_column(name, justify="right")
    for attempt in simulation.tried:
        share = "" if attempt.goodput is None else f"{attempt.goodput.share:.1%}"
        cost = "" if attempt.cost_per_month is None else f"{attempt.cost_per_month:,.0f}"
        mark = " *" if attempt.gpus == simulation.result.gpus else ""
        table.add_row(
            f"{attempt.gpus}{mark}", share, _p99(attempt.ttft), _p99(attempt.tpot), f"{attempt.utilization:.0%}", cost
        )
    return table


def _p99(distribution: Distribution) -> str:
    return _ms(distribution.p99_ms)


def _ms(value: float) -> str:
    return "-" if math.isnan(value) else f"{value:,.4g}" if value < 1000 else f"{value:,.0f}"
