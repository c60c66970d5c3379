"""A plan as an HTML page: what fits, best-case speed and price, rooflines with the model's layers, formats, grids."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trtkit.planning.report import LlmReport, LlmSpeed
from trtkit.report import charts
from trtkit.report.page import page, section
from trtkit.report.planning_tables import detail_tables, gpus_tables, model_facts, work_tables
from trtkit.report.tables import Lines, LinkCell, Note, Table, milliseconds, named, quantity

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from trtkit.planning.gpus import PlannedGpu
    from trtkit.planning.report import Report, VisionSpeed
    from trtkit.report.charts import Row
    from trtkit.report.page import PageOrigin, PagePart
    from trtkit.report.tables import Value

_PHASES = {"prefill": charts.ORANGE, "decode": charts.BLUE, "run": charts.BLUE}


def plan_page(plan: Report, origin: PageOrigin) -> str:
    """Return a plan as a self-contained page."""
    parts: list[PagePart] = [Note(_NOTE), model_facts(plan), *gpus_tables(plan)]
    parts += [*section("Throughput against latency", *_curves(plan)), *work_tables(plan)]
    for gpu in plan.gpus:
        parts += section(gpu.gpu.name, _roofline(plan, gpu.gpu), *detail_tables(gpu))
    parts += [Lines("assumptions", plan.assumptions), _sources([gpu.gpu for gpu in plan.gpus])]
    return page(f"plan {plan.name}", parts, origin)


_NOTE = "Best case: published rates and bandwidth reached in full, nothing between layers. No engine is faster."


def _roofline(plan: Report, gpu: PlannedGpu) -> PagePart:
    """Return one GPU's roofs with a point for each kind of layer, at the height that its intensity permits."""
    types = sorted({dtype for step in plan.step.values() for dtype in step.products})
    rates = {dtype: rate for dtype in types if (rate := gpu.rate(dtype)) is not None}
    if not rates:
        return Note(f"No rate is known for {', '.join(types)}, so the page has no roofline for it.")
    by = charts.colour("phase", "layers of", {phase: _PHASES[phase] for phase in plan.step})
    return charts.roofline(rates, gpu.bandwidth_bytes_per_s, list(_points(plan, gpu, rates)), by)


def _points(plan: Report, gpu: PlannedGpu, rates: dict[str, float]) -> Iterator[Row]:
    """Yield a row for each kind of computing layer, then one for the whole network, drawn as a large point."""
    for phase, step in plan.step.items():
        for row in plan.layers:
            work = row.phases[phase]
            if work.flops_per_byte > 0:
                rate = min((rates[dtype] for dtype in work.products if dtype in rates), default=max(rates.values()))
                yield _point(
                    phase, row.group, work.flops_per_byte, min(rate, gpu.bandwidth_bytes_per_s * work.flops_per_byte)
                )
        x = step.flops / step.fused_bytes
        whole = _point(phase, "whole network, fused", x, min(max(rates.values()), gpu.bandwidth_bytes_per_s * x))
        yield {**whole, "size": 220.0}


def _point(phase: str, name: str, intensity: float, rate: float) -> Row:
    point: Row = {"phase": phase, "intensity": intensity, "rate": rate, "size": 45.0, "Layer": name, "Phase": phase}
    return {**point, "Operations per byte": f"{intensity:.1f}", "Rate at best": quantity(rate, "OP/s").text}


def _curves(plan: Report) -> Iterator[PagePart]:
    """Yield throughput over step time, with a line per GPU and a point per batch."""
    rows = [_on_curve(gpu.gpu, speed) for gpu in plan.gpus for speed in gpu.curve]
    if not rows:
        yield Note("No batch fits, or counts are known at one batch only.")
        return
    is_llm = isinstance(plan, LlmReport)
    x = "time per output token, ms" if is_llm else "latency, ms"
    axes = (
        charts.ChartAxis("ms", x, is_log=True, ticks="~g"),
        charts.ChartAxis("rate", _RATES[is_llm], is_log=True, ticks="~s"),
    )
    drawn = charts.with_legend(charts.lines(rows, axes, charts.colour("gpu", "GPU")), "gpu")
    yield charts.figure(drawn, "A point for each batch, at best. Click the legend to dim the others.", height=360)


_RATES = {True: "output tokens per second", False: "images per second"}


def _on_curve(gpu: PlannedGpu, row: LlmSpeed | VisionSpeed) -> Row:
    if isinstance(row, LlmSpeed):
        time, rate = row.tpot, row.output_tokens_per_second
    else:
        time, rate = row.latency, row.images_per_second
    point: Row = {"gpu": gpu.name, "ms": 1e3 * time.seconds, "rate": rate, "order": float(row.batch)}
    shown: Row = {
        "GPU": gpu.name,
        "Batch": f"{row.batch:,}",
        "Time": milliseconds(1e3 * time.seconds).text,
        "Rate": f"{rate:,.0f} per second",
    }
    return {**point, **shown, "Bound by": time.bound}


def _sources(gpus: Sequence[PlannedGpu]) -> Table:
    rows: list[tuple[Value, ...]] = []
    for gpu in gpus:
        rows += [(gpu.name, LinkCell(url), f"read {gpu.read}", gpu.note) for url in gpu.sources]
        rows += [(gpu.name, LinkCell(gpu.data_sheet), "data sheet, not read", "")] if gpu.data_sheet else []
    return Table("sources of the GPUs' figures", named("GPU", "source", "", "note"), rows)
