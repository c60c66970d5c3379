"""A plan as one HTML page: what fits, speed and price at best, rooflines with the model's layers, formats, grids."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

from trtkit.planning.gpus import efficiency_text, known_links
from trtkit.planning.question import HOURS_PER_MONTH
from trtkit.planning.report import LlmGpu, LlmReport, LlmSpeed
from trtkit.report import charts
from trtkit.report.cells import LinkCell, NumberCell, VerdictCell, milliseconds, number, quantity, size
from trtkit.report.page import facts, page, section, table

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from trtkit.planning.gpus import PlannedGpu
    from trtkit.planning.report import Report, VisionGpu, VisionSpeed
    from trtkit.planning.roofline import Floor
    from trtkit.report.cells import Value
    from trtkit.report.charts import Row
    from trtkit.report.page import PageOrigin

_PHASES = {"prefill": charts.ORANGE, "decode": charts.BLUE, "run": charts.BLUE}


def plan_page(plan: Report, origin: PageOrigin) -> str:
    """Return a plan as a self-contained page."""
    parts = [f"<h1>plan {escape(plan.name)}</h1>", f"<p>{_NOTE}</p>", facts(_model(plan))]
    parts += section("GPUs at best", _gpus(plan), f"<p class='note'>{_UNKNOWN}</p>")
    parts += section("Load", *_loads(plan))
    parts += section("Throughput against latency", *_curves(plan))
    parts += section("Work of each kind of layer", _layers(plan))
    for gpu in plan.gpus:
        parts += section(gpu.gpu.name, *_gpu(plan, gpu))
    parts += ["<h2>Assumptions</h2><ul>", *(f"<li>{escape(line)}</li>" for line in plan.assumptions), "</ul>"]
    parts += section("Sources of the GPUs' figures", _sources([gpu.gpu for gpu in plan.gpus]))
    return page(f"plan {plan.name}", parts, origin)


_NOTE = "Best case: published rates and bandwidth reached in full, nothing between layers. No engine is faster."

_UNKNOWN = "? no rate of compute is published for a type of the network: the time is memory's alone."


def _model(plan: Report) -> dict[str, Value]:
    """Return what is planned for."""
    rows: dict[str, Value] = {"model": plan.source}
    if not isinstance(plan, LlmReport):
        shapes = "; ".join(f"{name} {list(shape)}" for name, shape in plan.shapes.items())
        return {**rows, "weights": size(plan.weight_bytes), "inputs": shapes, "batch": plan.batch}
    model, work = plan.model, plan.work
    types = f"{model.dtype.name}, caches {model.kv_dtype.name}" + (f", {model.quantized}" if model.quantized else "")
    rows |= {
        "parameters": NumberCell(model.parameters, _millions(model.parameters)),
        "weights": size(model.weight_bytes),
        "types": types,
    }
    rows |= {"KV cache of a token": size(model.kv_bytes_per_token), "KV cache of a request": size(plan.slot_bytes)}
    if model.state_bytes:
        rows["recurrent states of a request"] = size(model.state_bytes)
    return {**rows, "load": f"{work.concurrency} at once, {work.input_len} prompt and {work.output_len} answer tokens"}


def _millions(count: int) -> str:
    return f"{count / 1e9:.2f} B" if count >= 1e9 else f"{count / 1e6:.1f} M"


def _gpus(plan: Report) -> str:
    """Return all GPUs: what fits, how fast, at what price."""
    is_llm = isinstance(plan, LlmReport)
    times = ("largest context", "TTFT", "TPOT") if is_llm else ("latency", "unfused")
    unit = "output tokens" if is_llm else "images"
    headers = ("GPU", "fits", "needs", "of", "largest batch", *times, "bound by", f"{unit}/s", f"price of 1 M {unit}")
    return table(headers, [(gpu.gpu.name, _fits(gpu), *_figures(gpu)) for gpu in plan.gpus])


def _loads(plan: Report) -> Iterator[str]:
    """Yield how many GPUs carry the load at best, and what they cost a month."""
    rows = [(gpu.gpu.name, number(gpu.load.per_gpu), gpu.load.gpus, gpu.load.cost_per_month)
            for gpu in plan.gpus if gpu.load is not None]  # fmt: skip
    if rows:
        loads = {gpu.load.requests_per_second for gpu in plan.gpus if gpu.load is not None}
        yield f"<p>{loads.pop():g} requests per second, every GPU at its ceiling: real engines need more.</p>"
        yield table(("GPU", "requests/s of one", "GPUs", f"price of a month ({HOURS_PER_MONTH} hours)"), rows)


def _figures(plan: LlmGpu | VisionGpu) -> tuple[Value, ...]:
    needs = size(plan.memory.total), size(plan.gpu.memory_bytes), plan.largest_batch
    times: tuple[Value, ...]
    if isinstance(plan, LlmGpu):
        times = plan.largest_context, _ms(plan.speed.ttft), _ms(plan.speed.tpot), _bound(plan.speed.tpot)
        rate, price = plan.speed.output_tokens_per_second, plan.speed.cost_per_million_output_tokens
    else:
        times = _ms(plan.speed.latency), milliseconds(plan.speed.unfused_ms), _bound(plan.speed.latency)
        rate, price = plan.speed.images_per_second, plan.speed.cost_per_million_images
    if not plan.fits:
        return (*needs, *times, None, None)
    return (*needs, *times, number(rate), None if price is None else number(price))


def _fits(plan: LlmGpu | VisionGpu) -> VerdictCell:
    if not plan.takes_precision:
        return VerdictCell(False, "no: type")
    return VerdictCell(plan.fits, "yes" if plan.fits else "no")


def _ms(time: Floor) -> NumberCell:
    """Return a floor, with a question mark if it is memory's alone."""
    ms = milliseconds(1e3 * time.seconds)
    return ms if time.compute_s is not None else NumberCell(ms.value, f"{ms.text} ?")


def _bound(time: Floor) -> str:
    return time.bound.partition(",")[0]


def _gpu(plan: Report, gpu: LlmGpu | VisionGpu) -> Iterator[str]:
    """Yield one GPU's roofline, batches, formats and grids."""
    yield _roofline(plan, gpu.gpu)
    if gpu.gpu.matmul_efficiency:
        yield f"<p class='note'>{escape(_measured(gpu.gpu))}</p>"
    yield from section("By batch", _batches(gpu), level=3)
    if isinstance(gpu, LlmGpu):
        headers = ("format", "weights", "KV cache of a token", "fits", "largest batch", "TTFT", "TPOT")
        rows = [
            (row.name, size(row.weight_bytes), size(row.kv_bytes_per_token), _yes(row.fits), row.largest_batch,
             _ms(row.ttft), _ms(row.tpot))
            for row in gpu.formats
        ]  # fmt: skip
        yield from section("Formats of weights and caches", table(headers, rows), level=3)
        if gpu.grids:
            link = known_links().links[gpu.gpu.link].name
            yield from section(f"Several GPUs over {link}", _grids(gpu), level=3)
        if gpu.streaming:
            link = known_links().links[gpu.gpu.host_link].name
            yield from section(f"Weights streamed from the host over {link}", _streaming(gpu), level=3)


def _measured(gpu: PlannedGpu) -> str:
    return f"Measured in PyTorch: {efficiency_text(gpu)}; see the last of this GPU's sources."


def _yes(fits: bool) -> VerdictCell:
    return VerdictCell(fits, "yes" if fits else "no")


def _batches(gpu: LlmGpu | VisionGpu) -> str:
    headers = ["batch", *(["TTFT of all"] if isinstance(gpu, LlmGpu) else []), *_SPEED[isinstance(gpu, LlmGpu)]]
    rows: list[tuple[Value, ...]] = []
    for speed in gpu.curve:
        if isinstance(speed, LlmSpeed):
            rate, price = speed.output_tokens_per_second, speed.cost_per_million_output_tokens
            rows.append((speed.batch, _ms(speed.ttft_of_all), _ms(speed.tpot), _bound(speed.tpot), number(rate), price))
        else:
            rate, price = speed.images_per_second, speed.cost_per_million_images
            rows.append((speed.batch, _ms(speed.latency), _bound(speed.latency), number(rate), price))
    return table(headers, rows)


_SPEED = {
    True: ("TPOT", "bound by", "output tokens/s", "price of 1 M output tokens"),
    False: ("latency", "bound by", "images/s", "price of 1 M images"),
}


def _grids(gpu: LlmGpu) -> str:
    headers = ("tensor", "pipeline", "GPUs", "memory of each", "fits", "largest batch", "TTFT",
               "TPOT", "links in TPOT", "output tokens/s while decoding", "sent per step", "best at")  # fmt: skip
    rows: list[tuple[Value, ...]] = [
        (grid.tensor, grid.pipeline, grid.gpus, size(grid.memory_per_gpu.total), _yes(grid.fits),
         grid.largest_batch, *(milliseconds(1e3 * s) for s in (grid.ttft_s, grid.tpot_s, grid.links_s_per_step)),
         number(grid.decode_tokens_per_second), size(grid.sent_bytes_per_step), ", ".join(grid.best_at))
        for grid in gpu.grids
    ]  # fmt: skip
    note = f"<p>Largest tensor-parallel size that makes a decode step faster: {gpu.tensor_pays_up_to}.</p>"
    return note + table(headers, rows)


def _streaming(gpu: LlmGpu) -> str:
    headers = ("budget", "streamed per step", "fits", "copies", "TPOT", "output tokens/s while decoding",
               "largest batch", "output tokens/s with it", "free from batch")  # fmt: skip
    rows: list[tuple[Value, ...]] = [
        (size(row.budget_bytes), size(row.streamed_bytes), _yes(row.fits),
         milliseconds(1e3 * row.stream_s_per_step), milliseconds(1e3 * row.tpot_s),
         number(row.decode_tokens_per_second), row.largest_batch,
         number(row.most_decode_tokens_per_second), row.free_from_batch)
        for row in gpu.streaming
    ]  # fmt: skip
    return table(headers, rows)


def _roofline(plan: Report, gpu: PlannedGpu) -> str:
    """Return the roofs of one GPU with a point for each kind of layer, at the height that its intensity allows."""
    types = sorted({dtype for step in plan.step.values() for dtype in step.products})
    rates = {dtype: rate for dtype in types if (rate := gpu.rate(dtype)) is not None}
    if not rates:
        return f"<p>No rate is known for {escape(', '.join(types))}, so the page has no roofline for it.</p>"
    by = charts.colour("phase", "layers of", {phase: _PHASES[phase] for phase in plan.step})
    return charts.roofline(rates, gpu.bandwidth_bytes_per_s, list(_points(plan, gpu, rates)), by)


def _points(plan: Report, gpu: PlannedGpu, rates: dict[str, float]) -> Iterator[Row]:
    """Yield a row for each kind of layer that computes, then one for the whole network, whose point is large."""
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


def _layers(plan: Report) -> str:
    """Return work and intensity of each kind of layer, by phase."""
    headers = ["layers", "count", "weights"]
    headers += [
        f"{phase}: {text}" for phase in plan.step for text in ("operations", "bytes moved", "operations per byte")
    ]
    rows = []
    for row in plan.layers:
        cells: list[Value] = [row.group, row.layers, size(row.weight_bytes)]
        for work in (row.phases[phase] for phase in plan.step):
            cells += [quantity(work.flops, "OP"), size(work.bytes), number(work.flops_per_byte)]
        rows.append(cells)
    return table(headers, rows)


def _curves(plan: Report) -> Iterator[str]:
    """Yield throughput over the time of a step, a line for each GPU with a point for each batch."""
    rows = [_on_curve(gpu.gpu, speed) for gpu in plan.gpus for speed in gpu.curve]
    if not rows:
        yield "<p>No batch fits, or counts are known at one batch only.</p>"
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
    shown: Row = {"GPU": gpu.name, "Batch": f"{row.batch:,}", "Time": _ms(time).text, "Rate": f"{rate:,.0f} per second"}
    return {**point, **shown, "Bound by": time.bound}


def _sources(gpus: Sequence[PlannedGpu]) -> str:
    rows: list[tuple[Value, ...]] = []
    for gpu in gpus:
        rows += [(gpu.name, LinkCell(url), f"read {gpu.read}", gpu.note) for url in gpu.sources]
        rows += [(gpu.name, LinkCell(gpu.data_sheet), "data sheet, not read", "")] if gpu.data_sheet else []
    return table(("GPU", "source", "", "note"), rows)
