"""Tables of `trtkit bench` that hold figures against what the hardware allows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from trtkit.cli.tables import listing

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.console import RenderableType

Json = dict[str, Any]
_NAMES = {
    "latency": "latency",
    "throughput": "samples/s",
    "time_to_first_token": "TTFT",
    "inter_token_latency": "ITL",
    "request_latency": "E2E",
    "output_token_throughput": "tokens/s",
}
_RATES = ("throughput", "output_token_throughput")


def ceiling_tables(case: Json) -> Iterator[RenderableType]:
    """Yield a case's figures beside their ceilings, and the layers that lose the most time."""
    if any("ceilings" in result for result in case["results"]):
        yield _figures(case["results"])
    for phase in case.get("phases", ()):
        yield _gaps(phase)


def _figures(results: list[Json]) -> RenderableType:
    rows = listing("", "ceiling of", "figure", "measured", "at best", "reached", "bound by")
    for column in rows.columns[2:5]:
        column.justify, column.no_wrap = "right", True
    for result in results:
        for metric, against in result.get("ceilings", {}).items():
            measured = result["metrics"][metric]["avg" if metric in _RATES else "p50"]
            numbers = (number_text(measured), number_text(against["ceiling"]), share_text(against["reached"]))
            name = _NAMES[metric] if metric in _RATES else f"{_NAMES[metric]} p50, ms"
            rows.add_row(result["contender"], name, *numbers, against["bound"])
    return rows


def _gaps(phase: Json) -> RenderableType:
    total = sum(row["ms"] for row in phase["layers"])
    rows = listing(
        f"largest gaps of a {phase['name']}, {number_text(total)} ms in layers",
        "layer", "layers", "ms", "at best", "reached", "bound by",
    )  # fmt: skip
    for column in rows.columns[1:5]:
        column.justify, column.no_wrap = "right", True
    for row in phase["gaps"]:
        numbers = (number_text(row["ms"]), number_text(row["floor_ms"]), share_text(row["reached"]))
        rows.add_row(row["layer"], str(row["layers"]), *numbers, row["bound"])
    return rows


def number_text(value: float) -> str:
    """Return a figure with three digits or more."""
    return f"{value:.0f}" if value >= 1000 else f"{value:.1f}" if value >= 100 else f"{value:.3g}"


def share_text(share: float) -> str:
    """Return a share as a percentage, of those below 1 % one digit."""
    return f"{share:.0%}" if share >= 0.01 else f"{100 * share:.1g}%"
