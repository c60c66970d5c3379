"""Tables of `trtkit bench`: metrics, contenders, and figures against what the hardware allows."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.text import Text

from trtkit.benchmarking.report import TextCase, TextResult
from trtkit.cli.tables import listing, pairs

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from rich.console import RenderableType
    from rich.table import Table

    from trtkit.benchmarking.ceiling_report import PhaseLayers
    from trtkit.benchmarking.report import Case, Ratio, Report, Result


_LOAD = ("time_to_first_token", "inter_token_latency", "request_latency")
_RATES = ("output_token_throughput", "request_throughput", "goodput")
_STATISTICS = ("min", "avg", "p50", "p90", "p95", "p99")


_NO_ENGINE = (
    "These are times of the reference executor on this processor, not of an engine. Compare them with each other: with "
    "those of an earlier version, or of ONNX Runtime and PyTorch here. `trtkit plan {bundle}` estimates the best case "
    "of an engine on a GPU."
)


def bench_tables(report: Report) -> Iterator[RenderableType]:
    """Yield the tables of a report. What limits an engine is shown for engines; files have it for all that computes."""
    is_engine = not report.computes.startswith("reference executor")
    yield _overview(report, is_engine=is_engine)
    if not is_engine:
        yield Text(_NO_ENGINE.format(bundle=report.bundle.path))
    for case in report.cases:
        yield load_table(case) if isinstance(case, TextCase) else _latency_table(case)
        if case.ratios:
            yield _ratios(case.ratios)
        if is_engine:
            yield from ceiling_tables(case)
    yield from _notes(report)


def _overview(report: Report, *, is_engine: bool) -> Table:
    machine, bundle = report.provenance.machine, report.bundle
    rows = pairs(f"bench {report.name}")
    rows.add_row("runtime", report.computes)
    rows.add_row("bundle", f"{bundle.path}, {bundle.verification}")
    rows.add_row("inputs", report.inputs)
    gpus = "".join(f", {gpu.name}" for gpu in machine.gpus)
    load = machine.load_average[0]
    rows.add_row("machine", f"{machine.processor}, {machine.usable_cores} cores{gpus}, load {load:.1f}")
    if is_engine:
        rows.add_row("ceiling", report.ceiling.said)
        rows.add_row("CUDA graphs", report.cuda_graphs)
    for state in report.gpu_state_after:
        rows.add_row("GPU", ", ".join(f"{name} {value}" for name, value in state.items()))
    return rows


def _latency_table(case: Case) -> Table:
    rows = listing(f"{case.name}: latency in ms", "runtime", *_STATISTICS, "samples/s", "runs")
    for column in rows.columns[1:]:
        column.justify, column.no_wrap = "right", True
    for result in case.results:
        latency = result.distribution("latency")
        assert latency is not None
        figures = [number_text(vars(latency)[name]) for name in _STATISTICS]
        rate = number_text(result.metrics["throughput"].avg)
        rows.add_row(result.computes, *figures, rate, f"{latency.count}{_mark(result)}")
    return rows


def load_table(case: TextCase) -> Table:
    """Return a load's figures: medians and 99th percentiles in ms, rates a second; 80 columns hold them."""
    names = ("TTFT ms\np50/99", "ITL ms\np50/99", "E2E ms\np50/99", "tok/s", "req/s")
    goodput = any("goodput" in result.metrics for result in case.results)
    rows = listing(case.name, "runtime", *names, *(["good/s"] if goodput else []), "done")
    for column in rows.columns[1:]:
        column.justify, column.no_wrap = "right", True
    for result in case.results:
        metrics = result.metrics
        latencies = [_percentiles(result, name) for name in _LOAD]
        rates = [number_text(metrics[name].avg) if name in metrics else "-" for name in _RATES[: 3 if goodput else 2]]
        failed = metrics["error_request_count"].avg
        done = f"{metrics['request_count'].avg:.0f}{f', {failed:.0f} failed' if failed else ''}{_mark(result)}"
        rows.add_row(result.computes, *latencies, *rates, done)
    return rows


def _percentiles(result: Result, metric: str) -> str:
    """Return a metric's median and 99th percentile."""
    latency = result.distribution(metric)
    return "-/-" if latency is None else f"{number_text(latency.p50)}/{number_text(latency.p99)}"


def _mark(result: Result) -> str:
    return "" if result.is_steady else " ~"


def _ratios(ratios: Sequence[Ratio]) -> Text:
    """Compare ours with the others, metric by metric."""
    return Text("\n".join(_ratio_text(ratio) for ratio in ratios))


def _ratio_text(ratio: Ratio) -> str:
    """Return `latency: ours is 1.35x faster than torch (95 % CI 1.31 to 1.40)`."""
    times, low, high = ratio.ratio, ratio.low, ratio.high
    how = "slower"
    if times < 1:
        times, low, high, how = 1 / times, 1 / high, 1 / low, "faster"
    texts = [f"{value:.2f}" if value < 10 else f"{value:.1f}" for value in (times, low, high)]
    interval = f"{100 * ratio.confidence:.0f} % CI {texts[1]} to {texts[2]}"
    return f"{ratio.metric}: {ratio.numerator} is {texts[0]}x {how} than {ratio.denominator} ({interval})"


def _notes(report: Report) -> Iterator[Text]:
    results = [result for case in report.cases for result in case.results]
    if not all(result.is_steady for result in results):
        yield Text("~ not steady: the last third of the samples differs from the first by more than 10 %", "yellow")
    texts = [result for result in results if isinstance(result, TextResult)]
    reused, restored = sum(text.reused_tokens for text in texts), sum(text.restored_tokens for text in texts)
    if reused:
        from_host = f" ({restored} of them through host memory)" if restored else ""
        yield Text(f"{reused} prompt tokens came from the KV cache{from_host} and were not recomputed")
    if report.bundle.is_unverified:
        yield Text(report.bundle.verification, "bold red")


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
