"""The tables of a benchmark, as printed by `trtkit bench`; the page shows most of them too."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trtkit.benchmarking.report import TextCase, TextResult
from trtkit.report.tables import Column, Facts, Note, NumberCell, Table, named, numbers

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from trtkit.benchmarking.ceiling_report import PhaseLayers
    from trtkit.benchmarking.report import Case, Ratio, Report, Result
    from trtkit.report.tables import Part, Value


_LOAD = ("time_to_first_token", "inter_token_latency", "request_latency")
_RATES = ("output_token_throughput", "request_throughput", "goodput")
_STATISTICS = ("min", "avg", "p50", "p90", "p95", "p99")


_NO_ENGINE = (
    "These are times of the reference executor on this processor, not of an engine. Compare them with each other: with "
    "those of an earlier version, or of ONNX Runtime and PyTorch here. `trtkit plan {bundle}` estimates the best case "
    "of an engine on a GPU."
)


def bench_tables(report: Report) -> Iterator[Part]:
    """Yield the tables of a report. Ceilings are shown for engines; files have them for every contender."""
    is_engine = not report.computes.startswith("reference executor")
    yield overview(report, is_engine=is_engine)
    if not is_engine:
        yield Note(_NO_ENGINE.format(bundle=report.bundle.path))
    for case in report.cases:
        yield load_table(case) if isinstance(case, TextCase) else _latency_table(case)
        if case.ratios:
            yield Note("\n".join(_ratio_text(ratio) for ratio in case.ratios))
        if is_engine:
            yield from ceiling_tables(case)
    yield from notes(report)


def overview(report: Report, *, is_engine: bool = True) -> Facts:
    """Return what ran the model and where, and for an engine its limits."""
    machine, bundle = report.provenance.machine, report.bundle
    gpus = "".join(f", {gpu.name}" for gpu in machine.gpus)
    load = machine.load_average[0]
    rows: list[tuple[str, Value]] = [
        ("runtime", report.computes),
        ("bundle", f"{bundle.path}, {bundle.verification}"),
        ("inputs", report.inputs),
        ("machine", f"{machine.processor}, {machine.usable_cores} cores{gpus}, load {load:.1f}"),
    ]
    if is_engine:
        rows += [("ceiling", report.ceiling.said), ("CUDA graphs", report.cuda_graphs)]
    rows += [("GPU", ", ".join(f"{name} {value}" for name, value in state.items())) for state in report.gpu_state_after]
    return Facts(f"bench {report.name}", rows)


def _latency_table(case: Case) -> Table:
    rows: list[tuple[Value, ...]] = []
    for result in case.results:
        latency = result.distribution("latency")
        assert latency is not None
        figures = [_figure(vars(latency)[name]) for name in _STATISTICS]
        rate = _figure(result.metrics["throughput"].avg)
        rows.append((result.computes, *figures, rate, f"{latency.count}{_mark(result)}"))
    columns = (Column("runtime"), *numbers(*_STATISTICS, "samples/s", "runs"))
    return Table(f"{case.name}: latency in ms", columns, rows)


def load_table(case: TextCase) -> Table:
    """Return a load's figures: medians and 99th percentiles in ms, rates per second; they fit 80 columns."""
    names = ("TTFT ms\np50/99", "ITL ms\np50/99", "E2E ms\np50/99", "tok/s", "req/s")
    goodput = any("goodput" in result.metrics for result in case.results)
    rows: list[tuple[Value, ...]] = []
    for result in case.results:
        metrics = result.metrics
        latencies = [_percentiles(result, name) for name in _LOAD]
        rates = [_figure(metrics[name].avg) if name in metrics else None for name in _RATES[: 3 if goodput else 2]]
        failed = metrics["error_request_count"].avg
        done = f"{metrics['request_count'].avg:.0f}{f', {failed:.0f} failed' if failed else ''}{_mark(result)}"
        rows.append((result.computes, *latencies, *rates, done))
    return Table(case.name, (Column("runtime"), *numbers(*names, *(["good/s"] if goodput else []), "done")), rows)


def _percentiles(result: Result, metric: str) -> str:
    """Return a metric's median and 99th percentile."""
    latency = result.distribution(metric)
    return "-/-" if latency is None else f"{number_text(latency.p50)}/{number_text(latency.p99)}"


def _mark(result: Result) -> str:
    return "" if result.is_steady else " ~"


def _ratio_text(ratio: Ratio) -> str:
    """Return `latency: ours is 1.35x faster than torch (95 % CI 1.31 to 1.40)`."""
    times, low, high = ratio.ratio, ratio.low, ratio.high
    how = "slower"
    if times < 1:
        times, low, high, how = 1 / times, 1 / high, 1 / low, "faster"
    texts = [f"{value:.2f}" if value < 10 else f"{value:.1f}" for value in (times, low, high)]
    interval = f"{100 * ratio.confidence:.0f} % CI {texts[1]} to {texts[2]}"
    return f"{ratio.metric}: {ratio.numerator} is {texts[0]}x {how} than {ratio.denominator} ({interval})"


def notes(report: Report) -> Iterator[Note]:
    """Yield remarks on the figures."""
    results = [result for case in report.cases for result in case.results]
    if not all(result.is_steady for result in results):
        yield Note("~ not steady: the last third of the samples differs from the first by more than 10 %", "warning")
    texts = [result for result in results if isinstance(result, TextResult)]
    reused, restored = sum(text.reused_tokens for text in texts), sum(text.restored_tokens for text in texts)
    if reused:
        from_host = f" ({restored} of them through host memory)" if restored else ""
        yield Note(f"{reused} prompt tokens came from the KV cache{from_host} and were not recomputed")
    if report.bundle.is_unverified:
        yield Note(report.bundle.verification, "bad")


_NAMES = {
    "latency": "latency",
    "throughput": "samples/s",
    "time_to_first_token": "TTFT",
    "inter_token_latency": "ITL",
    "request_latency": "E2E",
    "output_token_throughput": "tokens/s",
}


def ceiling_tables(case: Case) -> Iterator[Table]:
    """Yield a case's figures with their ceilings, and the layers that lose the most time."""
    if any(result.ceilings for result in case.results):
        yield _figures(case.results)
    for phase in case.phases:
        yield _gaps(phase)


def _figures(results: Sequence[Result]) -> Table:
    rows: list[tuple[Value, ...]] = []
    for result in results:
        for metric, reached in result.ceilings.items():
            latency = result.distribution(metric)
            measured = result.metrics[metric].avg if latency is None else latency.p50
            figures = (_figure(measured), _figure(reached.ceiling), _share(reached.reached))
            name = _NAMES[metric] if latency is None else f"{_NAMES[metric]} p50, ms"
            rows.append((result.contender, name, *figures, reached.bound))
    columns = (*named("ceiling of", "figure"), *numbers("measured", "at best", "reached"), Column("bound by"))
    return Table("", columns, rows)


def _gaps(phase: PhaseLayers) -> Table:
    total = sum(layer.ms for layer in phase.layers)
    rows: list[tuple[Value, ...]] = []
    for gap in phase.gaps:
        rows.append((gap.layer, gap.layers, _figure(gap.ms), _figure(gap.floor_ms), _share(gap.reached), gap.bound))
    columns = (Column("layer"), *numbers("layers", "ms", "at best", "reached"), Column("bound by"))
    return Table(f"largest gaps of a {phase.name}, {number_text(total)} ms in layers", columns, rows)


def _figure(value: float) -> NumberCell:
    return NumberCell(value, number_text(value))


def _share(share: float) -> NumberCell:
    return NumberCell(share, share_text(share))


def number_text(value: float) -> str:
    """Return a figure with at least three digits."""
    return f"{value:.0f}" if value >= 1000 else f"{value:.1f}" if value >= 100 else f"{value:.3g}"


def share_text(share: float) -> str:
    """Return a share as a percentage, with one digit for shares below 1 %."""
    return f"{share:.0%}" if share >= 0.01 else f"{100 * share:.1g}%"
