"""Tables of `trtkit bench` that hold figures against what the hardware allows."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trtkit.cli.tables import listing

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from rich.console import RenderableType

    from trtkit.benchmarking.ceiling_report import PhaseLayers
    from trtkit.benchmarking.report import Case, Result

_NAMES = {
    "latency": "latency",
    "throughput": "samples/s",
    "time_to_first_token": "TTFT",
    "inter_token_latency": "ITL",
    "request_latency": "E2E",
    "output_token_throughput": "tokens/s",
}


def ceiling_tables(case: Case) -> Iterator[RenderableType]:
    """Yield a case's figures with their ceilings, and the layers that lose the most time."""
    if any(result.ceilings for result in case.results):
        yield _figures(case.results)
    for phase in case.phases:
        yield _gaps(phase)


def _figures(results: Sequence[Result]) -> RenderableType:
    rows = listing("", "ceiling of", "figure", "measured", "at best", "reached", "bound by")
    for column in rows.columns[2:5]:
        column.justify, column.no_wrap = "right", True
    for result in results:
        for metric, reached in result.ceilings.items():
            latency = result.distribution(metric)
            measured = result.metrics[metric].avg if latency is None else latency.p50
            numbers = (number_text(measured), number_text(reached.ceiling), share_text(reached.reached))
            name = _NAMES[metric] if latency is None else f"{_NAMES[metric]} p50, ms"
            rows.add_row(result.contender, name, *numbers, reached.bound)
    return rows


def _gaps(phase: PhaseLayers) -> RenderableType:
    total = sum(layer.ms for layer in phase.layers)
    rows = listing(
        f"largest gaps of a {phase.name}, {number_text(total)} ms in layers",
        "layer", "layers", "ms", "at best", "reached", "bound by",
    )  # fmt: skip
    for column in rows.columns[1:5]:
        column.justify, column.no_wrap = "right", True
    for gap in phase.gaps:
        numbers = (number_text(gap.ms), number_text(gap.floor_ms), share_text(gap.reached))
        rows.add_row(gap.layer, str(gap.layers), *numbers, gap.bound)
    return rows


def number_text(value: float) -> str:
    """Return a figure with three digits or more."""
    return f"{value:.0f}" if value >= 1000 else f"{value:.1f}" if value >= 100 else f"{value:.3g}"


def share_text(share: float) -> str:
    """Return a share as a percentage, of those below 1 % one digit."""
    return f"{share:.0%}" if share >= 0.01 else f"{100 * share:.1g}%"
