"""A plan as tables for people."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from rich.table import Table
from rich.text import Text

from trtkit.cli.tables import count_text, pairs, plural, shape_text
from trtkit.planning.gpus import efficiency_text, known_links
from trtkit.planning.question import HOURS_PER_MONTH
from trtkit.planning.report import FormatPlan, GridPlan, LlmGpu, LlmReport, LlmSpeed, VisionGpu
from trtkit.report.cells import size_text

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from rich.console import RenderableType

    from trtkit.planning.gpus import PlannedGpu
    from trtkit.planning.report import Report, StepWork, VisionReport
    from trtkit.planning.roofline import Floor
    from trtkit.planning.streaming import StreamingPlan

# More GPUs than this are compared in one table only, unless they were named.
_DETAILED = 3
_UNKNOWN = "? compute rate unknown: memory time only"
_LEGEND = f"* layers without caches; with them, memory is the limit at every batch size.  {_UNKNOWN}"


def plan_tables(plan: Report, *, is_chosen: bool) -> Iterator[RenderableType]:
    """Yield all tables of a plan. is_chosen: the GPUs were named, so each is shown on its own too."""
    is_llm = isinstance(plan, LlmReport)
    yield _model(plan) if isinstance(plan, LlmReport) else _network(plan)
    for phase in plan.step:
        yield _layers(plan, phase)
    yield _llm_gpus(plan) if isinstance(plan, LlmReport) else _vision_gpus(plan)
    yield Text(_LEGEND if is_llm else _UNKNOWN)
    yield from _loads(plan)
    if is_chosen and len(plan.gpus) <= _DETAILED:
        for gpu in plan.gpus:
            yield from _details(gpu)
    yield _assumed(plan.assumptions)


def _assumed(lines: Sequence[str]) -> Table:
    """Return the assumptions as a list whose long lines hang."""
    table = Table(
        "", "", title="assumptions:", title_justify="left", title_style="", show_header=False, box=None, padding=0
    )
    for line in lines:
        table.add_row("- ", line)
    return table


def gpu_table(gpus: Sequence[PlannedGpu]) -> Table:
    """Return the table of GPUs: memory, bandwidth, dense rates; a dash where no page that was read states one."""
    types = ("tf32", "fp16", "bf16", "fp8", "int8", "fp4")
    table = _numbers("dense rates, 10^12 operations per second", ("gpu", "SM", "GB", "GB/s"), *types, "backends")
    for gpu in gpus:
        rates = [gpu.rates.get(dtype) for dtype in types]
        shown = ["-" if rate is None else f"{rate / 1e12:.0f}" for rate in rates]
        numbers = (f"{gpu.memory_bytes / 1e9:.0f}", f"{gpu.bandwidth_bytes_per_s / 1e9:.0f}")
        libraries = " ".join(_backends(gpu)).replace("tensorrt_rtx", "rtx").replace("tensorrt", "trt")
        table.add_row(gpu.key, str(gpu.compute_capability), *numbers, *shown, libraries)
    return table


def _backends(gpu: PlannedGpu) -> Iterator[str]:
    """Yield the libraries that build for a GPU, those marked that nobody has tested on it."""
    for name in gpu.backends:
        yield f"{name} (untested)" if name in gpu.untested_backends else name


def _model(plan: LlmReport) -> Table:
    """Return what an LLM weighs, and what the formulas say of it."""
    model, work = plan.model, plan.work
    table = pairs(f"plan {model.name}")
    parameters = f"{model.parameters:,} parameters, {size_text(model.weight_bytes)} in {model.dtype.name}"
    table.add_row("model", f"{model.model_type}, {model.layers} layers, {parameters}")
    if model.quantized:
        table.add_row("quantized", model.quantized)
    slot = f"{size_text(plan.slot_bytes)} per slot of {work.length} tokens"
    table.add_row("KV cache", f"{size_text(model.kv_bytes_per_token)} per token, {slot}")
    if model.state_bytes:
        table.add_row("", f"{size_text(model.state_bytes)} of these are recurrent states, whatever the length")
    if plan.windowed_slot_bytes is not None:
        table.add_row("", f"{size_text(plan.windowed_slot_bytes)} per slot if sliding layers kept only their window")
    lengths = f"{work.input_len} + {work.output_len} tokens, {plural(work.concurrency, 'concurrent request')}"
    limit = f" (maximum length {model.max_length})" if model.max_length else ""
    table.add_row("workload", lengths + limit)
    for phase, text in (("prefill", "one prompt"), ("decode", f"one step with batch {work.concurrency}")):
        table.add_row(phase, f"{text}: {_step_text(plan.step[phase])}")
    table.add_row("reads", _reads_text(plan))
    check = plan.formulas.decode_flops
    share = f"{check.ratio:.4f} of the counted work"
    table.add_row("formula", f"2 P + 4 N H T L: {count_text(check.formula)}FLOP per token, {share}")
    need = plan.gpus[0].memory
    others = [name for name in ("adapters", "speculator") if getattr(need, name)]
    names = ("weights", "kv_cache", "activations", "sampling", *others, "reserve")
    sizes = {name: getattr(need, name) for name in names}
    parts = ", ".join(f"{name.replace('_', ' ')} {size_text(size)}" for name, size in sizes.items())
    table.add_row("memory", f"{size_text(need.total)}: {parts}")
    return table


def _reads_text(plan: LlmReport) -> str:
    """Return what attention is given to read of caches."""
    full, used = plan.kv_window.get("full"), plan.kv_window["used"]
    if full is None:
        copied = ", copied first" if plan.work.copies_pages else ""
        return f"{size_text(used.bytes)} of caches in a decode step ({used.tokens} tokens of each request{copied})"
    reads = f"{size_text(full.bytes)} of caches in a decode step (slots of {full.tokens} tokens)"
    return f"{reads}, {size_text(used.bytes)} with `llm.kv_window: used` ({used.tokens})"


def _network(plan: VisionReport) -> Table:
    """Return what a vision network weighs."""
    table = pairs(f"plan {plan.name}")
    table.add_row("weights", size_text(plan.weight_bytes))
    shapes = "; ".join(f"{name} {shape_text(shape)}" for name, shape in plan.shapes.items())
    table.add_row("input", shapes)
    low, high = plan.profile
    table.add_row("batch", f"{plan.batch} (profile: {low} to {high})")
    table.add_row("one run", _step_text(plan.step["run"]))
    return table


def _step_text(step: StepWork) -> str:
    flops, moved = count_text(step.flops), size_text(step.fused_bytes)
    return f"{flops}FLOP, at least {moved} moved, activations {size_text(step.activation_bytes)}"


def _layers(plan: Report, phase: str) -> Table:
    """Return work and arithmetic intensity of each kind of layer in a phase."""
    table = _numbers(f"{phase}: work by kind of layer", ("layers", "#"), "weights", "FLOP", "moved", "FLOP/B")
    for row in plan.layers:
        work = row.phases[phase]
        sizes = (size_text(row.weight_bytes), count_text(work.flops), size_text(work.bytes))
        table.add_row(row.group, str(row.layers), *sizes, f"{work.flops_per_byte:.1f}")
    return table


def _llm_gpus(plan: LlmReport) -> Table:
    headers = ["fits", "batch", "context", "TTFT\nms", "TPOT\nms", "bound", "tokens\n/s", "compute"]
    has_prices = any(gpu.speed.cost_per_million_output_tokens is not None for gpu in plan.gpus)
    table = _numbers("best case", ("gpu",), *headers, *(["$/M\nout"] if has_prices else []))
    for gpu in plan.gpus:
        row = [
            _fits(gpu),
            str(gpu.largest_batch),
            str(gpu.largest_context),
            _ms(gpu.speed.ttft),
            _ms(gpu.speed.tpot),
            _bound(gpu.speed.tpot),
            _if_fits(gpu, _rate(gpu.speed.output_tokens_per_second)),
            _turn(gpu),
        ]
        cost = _if_fits(gpu, _price(gpu.speed.cost_per_million_output_tokens))
        table.add_row(gpu.gpu.key, *row, *([cost] if has_prices else []))
    return table


def _turn(gpu: LlmGpu) -> str:
    """Return the batch from which on decoding is bound by compute."""
    if gpu.speed.tpot.compute_s is None:
        return "?"
    without = gpu.compute_bound_batch_without_caches
    return str(gpu.compute_bound_batch or ("never" if without is None else f"{without}*"))


def _vision_gpus(plan: VisionReport) -> Table:
    has_prices = any(gpu.speed.cost_per_million_images is not None for gpu in plan.gpus)
    headers = ["fits", "batch", "latency\nms", "bound", "unfused\nms", "images\n/s"]
    table = _numbers("best case", ("gpu",), *headers, *(["$/M\nimages"] if has_prices else []))
    for gpu in plan.gpus:
        row = [
            _fits(gpu),
            str(gpu.largest_batch),
            _ms(gpu.speed.latency),
            _bound(gpu.speed.latency),
            _number(gpu.speed.unfused_ms),
            _if_fits(gpu, _rate(gpu.speed.images_per_second)),
        ]
        cost = _if_fits(gpu, _price(gpu.speed.cost_per_million_images))
        table.add_row(gpu.gpu.key, *row, *([cost] if has_prices else []))
    return table


def _loads(plan: Report) -> Iterator[Table]:
    """Yield how many GPUs carry the load at best, and what they cost; nothing without a load."""
    rows = [(gpu.gpu.key, gpu.load) for gpu in plan.gpus if gpu.load is not None]
    if not rows:
        return
    load = rows[0][1].requests_per_second
    title = f"{load:g} requests/s at best; a month has {HOURS_PER_MONTH} hours"
    table = _numbers(title, ("gpu",), "requests/s each", "GPUs", "cost a month")
    for key, per_load in sorted(rows, key=lambda row: row[1].cost_per_month or math.inf):
        cost = "-" if per_load.cost_per_month is None else f"{per_load.cost_per_month:,.0f}"
        table.add_row(key, _number(per_load.per_gpu), f"{per_load.gpus:,}", cost)
    yield table


def _details(plan: LlmGpu | VisionGpu) -> Iterator[Table]:
    """Yield what one GPU does at other batches, formats and numbers of GPUs."""
    gpu = plan.gpu
    table = pairs(f"{gpu.key}: {gpu.name}")
    table.add_row("memory", f"{size_text(gpu.memory_bytes)}, {gpu.bandwidth_bytes_per_s / 1e9:.0f} GB/s")
    table.add_row("backends", ", ".join(_backends(gpu)))
    table.add_row("precisions", ", ".join(gpu.precisions))
    if gpu.matmul_efficiency:
        table.add_row("measured", f"{efficiency_text(gpu)} ({gpu.sources[-1]})")
    yield table
    if plan.curve:
        yield _curve(plan)
    if isinstance(plan, LlmGpu):
        yield _formats(plan)
        if plan.grids:
            yield _grids(plan)
        if plan.streaming:
            yield _streaming(plan)


def _formats(gpu: LlmGpu) -> Table:
    """Return the plan for other weights and caches."""
    formats = _numbers(f"{gpu.gpu.key}: other formats", ("format",), "weights", "KV/token", "fits", "batch", "TPOT ms")
    for row in gpu.formats:
        sizes = (size_text(row.weight_bytes), size_text(row.kv_bytes_per_token))
        formats.add_row(row.name, *sizes, _fits(row), str(row.largest_batch), _ms(row.tpot))
    return formats


def _grids(gpu: LlmGpu) -> Table:
    """Return what several GPUs give."""
    headers = ("GPUs", "GiB", "fits", "batch", "TTFT\nms", "TPOT\nms", "links\nms", "tokens\n/s", "best at")
    title = f"{gpu.gpu.key}: several GPUs over {known_links().links[gpu.gpu.link].name}, GiB per GPU"
    table = _numbers(title, ("tensor x\npipeline",), *headers)
    for row in gpu.grids:
        times = (_number(1e3 * seconds) for seconds in (row.ttft_s, row.tpot_s, row.links_s_per_step))
        need = f"{row.memory_per_gpu.total / 2**30:.1f}"
        counts = (str(row.gpus), need, _fits(row), str(row.largest_batch))
        rate, best = _rate(row.decode_tokens_per_second), ", ".join(row.best_at)
        table.add_row(f"{row.tensor} x {row.pipeline}", *counts, *times, rate, best)
    table.caption = f"largest tensor-parallel size that makes a decode step faster: {gpu.tensor_pays_up_to}"
    return table


def _streaming(gpu: LlmGpu) -> Table:
    """Return what budgets for weights give."""
    headers = ("streamed", "fits", "copies\nms", "TPOT\nms", "tokens\n/s")
    batches = ("largest\nbatch", "tokens/s\nwith it", "free from\nbatch")
    title = f"{gpu.gpu.key}: weights from the host over {known_links().links[gpu.gpu.host_link].name}"
    table = _numbers(title, ("budget\nGiB",), *headers, *batches)
    for row in gpu.streaming:
        times = (_number(1e3 * row.stream_s_per_step), _number(1e3 * row.tpot_s), _rate(row.decode_tokens_per_second))
        sizes = (str(row.largest_batch), _rate(row.most_decode_tokens_per_second), str(row.free_from_batch or "-"))
        table.add_row(f"{row.budget_bytes / 2**30:.4g}", size_text(row.streamed_bytes), _fits(row), *times, *sizes)
    return table


def _curve(gpu: LlmGpu | VisionGpu) -> Table:
    """Return throughput and latency over the batch."""
    is_llm = isinstance(gpu, LlmGpu)
    headers = ("TTFT of all, ms", "TPOT ms", "tokens/s") if is_llm else ("latency ms", "bound", "images/s")
    table = _numbers(f"{gpu.gpu.key}: by batch size", ("batch",), *headers)
    for row in gpu.curve:
        if isinstance(row, LlmSpeed):
            cells = (_ms(row.ttft_of_all), _ms(row.tpot), _rate(row.output_tokens_per_second))
        else:
            cells = (_ms(row.latency), _bound(row.latency), _rate(row.images_per_second))
        table.add_row(str(row.batch), *cells)
    return table


def _numbers(title: str, first: Sequence[str], *columns: str) -> Table:
    """Return a table whose first column is text and whose others are numbers, which never break."""
    table = Table(title=title, title_justify="left", title_style="bold", box=None, pad_edge=False, header_style="cyan")
    for index, column in enumerate((*first, *columns)):
        table.add_column(column, justify="right" if index else "left", no_wrap=True, overflow="fold")
    return table


def _fits(row: LlmGpu | VisionGpu | FormatPlan | GridPlan | StreamingPlan) -> str:
    if isinstance(row, LlmGpu | VisionGpu) and not row.takes_precision:
        return "no dtype"
    return "yes" if row.fits else "no"


def _if_fits(gpu: LlmGpu | VisionGpu, text: str) -> str:
    return text if gpu.fits else "-"


def _bound(time: Floor) -> str:
    return time.bound.partition(",")[0]


def _ms(time: Floor) -> str:
    """Return a floor in ms, marked where it is memory's alone."""
    return _number(1e3 * time.seconds) + ("?" if time.compute_s is None else "")


def _rate(value: float) -> str:
    """Return a rate a second, whole up to a million."""
    return f"{value:.0f}" if value < 1e6 else count_text(value).replace(" ", "")


def _number(value: float) -> str:
    return f"{value:.3g}" if value < 100 else f"{value:.0f}"


def _price(value: float | None) -> str:
    return "-" if value is None else f"{value:.3g}"
