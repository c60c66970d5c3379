"""Tables of `trtkit bench`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rich.text import Text

from trtkit.cli.bench_ceilings import ceiling_tables, number_text
from trtkit.cli.tables import listing, pairs

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.console import RenderableType
    from rich.table import Table

Json = dict[str, Any]
_LOAD = ("time_to_first_token", "inter_token_latency", "request_latency")
_RATES = ("output_token_throughput", "request_throughput", "goodput")
_VISION = ("min", "avg", "p50", "p90", "p95", "p99")


def bench_tables(found: Json) -> Iterator[RenderableType]:
    """Yield the tables of a report."""
    yield _overview(found)
    yield from _cases(found)
    yield from _notes(found)


def _cases(found: Json) -> Iterator[RenderableType]:
    for case in found["cases"]:
        yield _vision(case) if found["kind"] == "vision" else load_table(case)
        if case["ratios"]:
            yield _ratios(case["ratios"])
        yield from ceiling_tables(case)


def _overview(found: Json) -> Table:
    machine = found["provenance"]["machine"]
    rows = pairs(f"bench {found['name']}")
    rows.add_row("computes", found["computes"])
    rows.add_row("bundle", f"{found['bundle']['path']}, {found['bundle']['verification']}")
    rows.add_row("inputs", found["inputs"])
    gpus = "".join(f", {gpu['name']}" for gpu in machine["gpus"])
    load = machine["load_average"][0]
    rows.add_row("machine", f"{machine['processor']}, {machine['usable_cores']} cores{gpus}, load {load:.1f}")
    rows.add_row("ceiling", found["ceiling"]["said"])
    rows.add_row("CUDA graphs", found["cuda_graphs"])
    for gpu in found["gpu_state_after"]:
        rows.add_row("GPU", ", ".join(f"{name} {value}" for name, value in gpu.items()))
    return rows


def _vision(case: Json) -> Table:
    rows = listing(f"{case['name']}: latency in ms", "computes", *_VISION, "samples/s", "runs")
    for column in rows.columns[1:]:
        column.justify, column.no_wrap = "right", True
    for result in case["results"]:
        latency, rate = result["metrics"]["latency"], result["metrics"]["throughput"]["avg"]
        figures = [number_text(latency[name]) for name in _VISION]
        mark = "" if result["is_steady"] else " ~"
        rows.add_row(result["computes"], *figures, number_text(rate), f"{latency['count']}{mark}")
    return rows


def load_table(case: Json) -> Table:
    """Return a load's figures: medians and 99th percentiles in ms, rates a second; 80 columns hold them."""
    names = ("TTFT ms\np50/99", "ITL ms\np50/99", "E2E ms\np50/99", "tok/s", "req/s")
    goodput = any("goodput" in result["metrics"] for result in case["results"])
    rows = listing(case["name"], "computes", *names, *(["good/s"] if goodput else []), "done")
    for column in rows.columns[1:]:
        column.justify, column.no_wrap = "right", True
    for result in case["results"]:
        metrics = result["metrics"]
        latencies = ["/".join(_statistic(metrics, name, kind) for kind in ("p50", "p99")) for name in _LOAD]
        rates = [_statistic(metrics, name, "avg") for name in _RATES[: 3 if goodput else 2]]
        failed = metrics["error_request_count"]["avg"]
        done = f"{metrics['request_count']['avg']:.0f}{f', {failed:.0f} failed' if failed else ''}"
        rows.add_row(result["computes"], *latencies, *rates, done + ("" if result["is_steady"] else " ~"))
    return rows


def _statistic(metrics: Json, name: str, kind: str) -> str:
    return number_text(metrics[name][kind]) if name in metrics else "-"


def _ratios(ratios: list[Json]) -> Text:
    """Say how ours compares, metric by metric."""
    lines = [
        f"{each['metric']}: {each['numerator']} takes {each['ratio']:.3f} of {each['denominator']}'s time "
        f"({each['confidence']:.0%}: {each['low']:.3f} to {each['high']:.3f})"
        for each in ratios
    ]
    return Text("\n".join(lines))


def _notes(found: Json) -> Iterator[Text]:
    results = [result for case in found["cases"] for result in case["results"]]
    if not all(result["is_steady"] for result in results):
        yield Text("~ not steady: the last third of a case differs from its first by more than 10 %", "yellow")
    reused = sum(result.get("reused_tokens", 0) for result in results)
    if reused:
        yield Text(f"{reused} tokens of prompts were found in a cache and not computed again")
    if found["bundle"]["verification"].startswith("UNVERIFIED"):
        yield Text(found["bundle"]["verification"], "bold red")
