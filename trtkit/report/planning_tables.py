"""The tables of a plan, as printed by `trtkit plan`; the page shows most of them too."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from trtkit.planning.gpus import efficiency_text, known_links
from trtkit.planning.question import HOURS_PER_MONTH
from trtkit.planning.report import (
    ContextPlan,
    FormatPlan,
    GridPlan,
    LlmGpu,
    LlmReport,
    LlmSpeed,
    SequencePlan,
    VisionGpu,
)
from trtkit.report.tables import (
    Column,
    Facts,
    Lines,
    Note,
    NumberCell,
    Table,
    Value,
    VerdictCell,
    count_text,
    counted,
    numbers,
    plural,
    shape_text,
    size,
    size_text,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from trtkit.planning.gpus import PlannedGpu
    from trtkit.planning.report import Report, StepWork, VisionReport
    from trtkit.planning.roofline import Floor
    from trtkit.planning.streaming import StreamingPlan
    from trtkit.report.tables import Part

# More GPUs than this are compared in a single table, unless they were named.
_DETAILED = 3
# More GPUs than this are not listed with the libraries that build for them.
_NAMED = 6
_UNKNOWN = "? compute rate unknown: memory time only"
_LEGEND = f"* layers without caches; with them, memory is the limit at every batch size.  {_UNKNOWN}"


def plan_tables(plan: Report, *, has_details: bool) -> Iterator[Part]:
    """Yield the tables of a plan, the answer first.

    has_details: whether to add layers, single GPUs, and assumptions.
    """
    yield from short_tables(plan)
    if not has_details:
        yield Note("Times are floors. Layers, batch sizes, formats, several GPUs and assumptions: `--details`.")
        return
    yield from work_tables(plan)
    if len(plan.gpus) <= _DETAILED:
        for gpu in plan.gpus:
            yield from detail_tables(gpu)
    yield Lines("assumptions:", plan.assumptions)


def short_tables(plan: Report) -> Iterator[Part]:
    """Yield the answer: each GPU's best case, and the model."""
    yield from gpus_tables(plan)
    yield model_facts(plan)


def model_facts(plan: Report) -> Facts:
    """Return the subject of the plan, and the libraries."""
    facts = _model(plan) if isinstance(plan, LlmReport) else _network(plan)
    return Facts(facts.title, [*facts.rows, ("backends", _backends_text([row.gpu for row in plan.gpus]))])


def _backends_text(gpus: Sequence[PlannedGpu]) -> str:
    """Return the libraries that build for each GPU, grouped by equal ones."""
    if len(gpus) > _NAMED:
        return "by GPU: `trtkit plan --list-gpus`"
    by_libraries: dict[str, list[str]] = {}
    for gpu in gpus:
        by_libraries.setdefault(", ".join(_backends(gpu)), []).append(gpu.key)
    return "; ".join(f"{libraries} ({', '.join(keys)})" for libraries, keys in by_libraries.items())


def work_tables(plan: Report) -> Iterator[Table]:
    """Yield work and arithmetic intensity of each kind of layer, one table per phase."""
    for phase in plan.step:
        yield _layers(plan, phase)


def gpus_tables(plan: Report) -> Iterator[Part]:
    """Yield all GPUs' best cases, and how many of them carry the load."""
    yield _llm_gpus(plan) if isinstance(plan, LlmReport) else _vision_gpus(plan)
    yield Note(_LEGEND if isinstance(plan, LlmReport) else _UNKNOWN)
    yield from _loads(plan)


def gpu_table(gpus: Sequence[PlannedGpu]) -> Table:
    """Return the table of GPUs: memory, bandwidth, dense rates; a dash if no consulted page states a rate."""
    types = ("tf32", "fp16", "bf16", "fp8", "int8", "fp4")
    rows: list[tuple[Value, ...]] = []
    for gpu in gpus:
        rates = [gpu.rates.get(dtype) for dtype in types]
        shown = [None if rate is None else NumberCell(rate, f"{rate / 1e12:.0f}") for rate in rates]
        figures = (f"{gpu.memory_bytes / 1e9:.0f}", f"{gpu.bandwidth_bytes_per_s / 1e9:.0f}")
        libraries = " ".join(_backends(gpu)).replace("tensorrt_rtx", "rtx").replace("tensorrt", "trt")
        rows.append((gpu.key, str(gpu.compute_capability or "-"), *figures, *shown, libraries))
    columns = (_name("gpu"), *numbers("SM", "GB", "GB/s", *types, "backends"))
    return Table("dense rates, 10^12 operations per second", columns, rows)


def _backends(gpu: PlannedGpu) -> Iterator[str]:
    """Yield the libraries that build for a GPU, marking those untested on it."""
    if not gpu.backends:
        yield "none: roofline only"
    for name in gpu.backends:
        yield f"{name} (untested)" if name in gpu.untested_backends else name


def _model(plan: LlmReport) -> Facts:
    """Return an LLM's sizes, and the formulas' results for it."""
    model, work = plan.model, plan.work
    parameters = f"{model.parameters:,} parameters, {size_text(model.weight_bytes)} in {model.dtype.name}"
    rows = [("model", f"{model.model_type}, {model.layers} layers, {parameters}")]
    if model.quantized:
        rows.append(("quantized", model.quantized))
    slot = f"{size_text(plan.slot_bytes)} per slot of {work.length} tokens"
    rows.append(("KV cache", f"{size_text(model.kv_bytes_per_token)} per token, {slot}"))
    if model.state_bytes:
        rows.append(("", f"{size_text(model.state_bytes)} of these are recurrent states, whatever the length"))
    if plan.windowed_slot_bytes is not None:
        rows.append(("", f"{size_text(plan.windowed_slot_bytes)} per slot if sliding layers kept only their window"))
    lengths = f"{work.input_len} + {work.output_len} tokens, {plural(work.concurrency, 'concurrent request')}"
    limit = f" (maximum length {model.max_length})" if model.max_length else ""
    rows.append(("workload", lengths + limit))
    for phase, text in (("prefill", "one prompt"), ("decode", f"one step with batch {work.concurrency}")):
        rows.append((phase, f"{text}: {_step_text(plan.step[phase])}"))
    check = plan.formulas.decode_flops
    share = f"{check.ratio:.4f} of the counted work"
    rows += [
        ("reads", _reads_text(plan)),
        ("formula", f"2 P + 4 N H T L: {count_text(check.formula)}FLOP per token, {share}"),
    ]
    need = plan.gpus[0].memory
    others = [name for name in ("adapters", "speculator") if getattr(need, name)]
    names = ("weights", "kv_cache", "activations", "sampling", *others, "reserve")
    parts = ", ".join(f"{name.replace('_', ' ')} {size_text(getattr(need, name))}" for name in names)
    return Facts(f"plan {model.name}", [*rows, ("memory", f"{size_text(need.total)}: {parts}")])


def _reads_text(plan: LlmReport) -> str:
    """Return how much of its caches attention reads."""
    full, used = plan.kv_window.get("full"), plan.kv_window["used"]
    if full is None:
        copied = ", copied first" if plan.work.copies_pages else ""
        return f"{size_text(used.bytes)} of caches in a decode step ({used.tokens} tokens of each request{copied})"
    reads = f"{size_text(full.bytes)} of caches in a decode step (slots of {full.tokens} tokens)"
    return f"{reads}, {size_text(used.bytes)} with `llm.kv_window: used`, copied first ({used.tokens})"


def _network(plan: VisionReport) -> Facts:
    shapes = "; ".join(f"{name} {shape_text(shape)}" for name, shape in plan.shapes.items())
    low, high = plan.profile
    rows = [
        ("weights", size_text(plan.weight_bytes)),
        ("input", shapes),
        ("batch", f"{plan.batch} (profile: {low} to {high})"),
        ("one run", _step_text(plan.step["run"])),
    ]
    return Facts(f"plan {plan.name}", rows)


def _step_text(step: StepWork) -> str:
    flops, moved = count_text(step.flops), size_text(step.fused_bytes)
    return f"{flops}FLOP, at least {moved} moved, activations {size_text(step.activation_bytes)}"


def _layers(plan: Report, phase: str) -> Table:
    """Return work and arithmetic intensity of each kind of layer in a phase."""
    rows: list[tuple[Value, ...]] = []
    for row in plan.layers:
        work = row.phases[phase]
        intensity = NumberCell(work.flops_per_byte, f"{work.flops_per_byte:.1f}")
        rows.append(
            (row.group, str(row.layers), size(row.weight_bytes), counted(work.flops), size(work.bytes), intensity)
        )
    columns = (_name("layers"), *numbers("#", "weights", "FLOP", "moved", "FLOP/B"))
    return Table(f"{phase}: work by kind of layer", columns, rows)


def _llm_gpus(plan: LlmReport) -> Table:
    has_prices = any(gpu.speed.cost_per_million_output_tokens is not None for gpu in plan.gpus)
    rows: list[tuple[Value, ...]] = []
    for gpu in plan.gpus:
        speed = gpu.speed
        times = (
            _ms(speed.ttft),
            _ms(speed.tpot),
            _bound(speed.tpot),
            _if_fits(gpu, _rate(speed.output_tokens_per_second)),
        )
        cost = _if_fits(gpu, _price(speed.cost_per_million_output_tokens))
        costs = [cost] if has_prices else []
        counts = (gpu.largest_batch, gpu.largest_context)
        rows.append((gpu.gpu.key, *_memory(gpu), *map(_count, counts), *times, _turn(gpu), *costs))
    columns = ("batch", "context", "TTFT\nms", "TPOT\nms", "bound", "tokens\n/s", "compute")
    prices = ["$/M\nout"] if has_prices else []
    return Table("best case", (_name("gpu"), *_MEMORY, *numbers(*columns, *prices)), rows)


_MEMORY = (Column("needs", "number", is_wide=True), Column("of", "number", is_wide=True), *numbers("fits"))


def _memory(gpu: LlmGpu | VisionGpu) -> tuple[Value, ...]:
    return size(gpu.memory.total), size(gpu.gpu.memory_bytes), _fits(gpu)


def _turn(gpu: LlmGpu) -> str:
    """Return the batch from which decoding is compute bound."""
    if gpu.speed.tpot.compute_s is None:
        return "?"
    without = gpu.compute_bound_batch_without_caches
    return str(gpu.compute_bound_batch or ("never" if without is None else f"{without}*"))


def _vision_gpus(plan: VisionReport) -> Table:
    has_prices = any(gpu.speed.cost_per_million_images is not None for gpu in plan.gpus)
    rows: list[tuple[Value, ...]] = []
    for gpu in plan.gpus:
        speed = gpu.speed
        times = (
            _ms(speed.latency),
            _bound(speed.latency),
            _figure(speed.unfused_ms),
            _if_fits(gpu, _rate(speed.images_per_second)),
        )
        costs = [_if_fits(gpu, _price(speed.cost_per_million_images))] if has_prices else []
        rows.append((gpu.gpu.key, *_memory(gpu), _count(gpu.largest_batch), *times, *costs))
    columns = ("batch", "latency\nms", "bound", "unfused\nms", "images\n/s")
    prices = ["$/M\nimages"] if has_prices else []
    return Table("best case", (_name("gpu"), *_MEMORY, *numbers(*columns, *prices)), rows)


def _loads(plan: Report) -> Iterator[Table]:
    """Yield the minimum number of GPUs for the load, and their cost; nothing without a load."""
    loads = [(gpu.gpu.key, gpu.load) for gpu in plan.gpus if gpu.load is not None]
    if not loads:
        return
    title = f"{loads[0][1].requests_per_second:g} requests/s at best; a month has {HOURS_PER_MONTH} hours"
    rows: list[tuple[Value, ...]] = []
    for key, load in sorted(loads, key=lambda row: row[1].cost_per_month or math.inf):
        cost = None if load.cost_per_month is None else NumberCell(load.cost_per_month, f"{load.cost_per_month:,.0f}")
        rows.append((key, _figure(load.per_gpu), load.gpus, cost))
    yield Table(title, (_name("gpu"), *numbers("requests/s each", "GPUs", "cost a month")), rows)


def detail_tables(plan: LlmGpu | VisionGpu) -> Iterator[Part]:
    """Yield one GPU's results for other batches, formats and numbers of GPUs."""
    gpu = plan.gpu
    rows = [
        ("memory", f"{size_text(gpu.memory_bytes)}, {gpu.bandwidth_bytes_per_s / 1e9:.0f} GB/s"),
        ("backends", ", ".join(_backends(gpu))),
        ("precisions", ", ".join(gpu.precisions)),
    ]
    if gpu.matmul_efficiency:
        rows.append(("measured", f"{efficiency_text(gpu)} ({gpu.sources[-1]})"))
    yield Facts(f"{gpu.key}: {gpu.name}", rows)
    if plan.curve:
        yield _curve(plan)
    if isinstance(plan, LlmGpu):
        if plan.mixed_steps:
            yield _mixed_steps(plan)
        yield _formats(plan)
        if plan.grids:
            yield _grids(plan)
            yield from (_sequence(plan, grid, grid.sequence) for grid in plan.grids if grid.sequence)
            yield from (_context(plan, grid, grid.context) for grid in plan.grids if grid.context)
        if plan.streaming:
            yield _streaming(plan)
        if plan.offload:
            yield _offload(plan)


def _mixed_steps(gpu: LlmGpu) -> Table:
    """Return the time of steps that decode and read a prompt chunk."""
    rows: list[tuple[Value, ...]] = [
        (str(step.prompt_tokens), _ms(step.packed), _bound(step.packed), _figure(step.separate_ms))
        for step in gpu.mixed_steps
    ]
    columns = (_name("prompt tokens"), *numbers("packed ms", "bound", "separate ms"))
    return Table(f"{gpu.gpu.key}: steps that also read a prompt", columns, rows)


def _formats(gpu: LlmGpu) -> Table:
    """Return the plan for other formats of weights and caches."""
    rows: list[tuple[Value, ...]] = []
    for row in gpu.formats:
        sizes = (size(row.weight_bytes), size(row.kv_bytes_per_token))
        rows.append((row.name, *sizes, _fits(row), _count(row.largest_batch), _ms(row.ttft), _ms(row.tpot)))
    first = (_name("format"), *numbers("weights", "KV/token", "fits", "batch"))
    return Table(
        f"{gpu.gpu.key}: other formats", (*first, Column("TTFT ms", "number", is_wide=True), *numbers("TPOT ms")), rows
    )


def _grids(gpu: LlmGpu) -> Table:
    rows: list[tuple[Value, ...]] = []
    for row in gpu.grids:
        times = (_figure(1e3 * seconds) for seconds in (row.ttft_s, row.tpot_s, row.links_s_per_step))
        need = NumberCell(row.memory_per_gpu.total, f"{row.memory_per_gpu.total / 2**30:.1f}")
        counts = (str(row.gpus), need, _fits(row), _count(row.largest_batch))
        sent = size(row.sent_bytes_per_step)
        rate, best = _rate(row.decode_tokens_per_second), ", ".join(row.best_at)
        name = f"{row.tensor} x {row.pipeline}{' *' if row.sequence or row.context else ''}"
        rows.append((name, *counts, *times, sent, rate, best))
    times_of = ("GPUs", "GiB", "fits", "batch", "TTFT\nms", "TPOT\nms", "links\nms")
    sent_in = Column("sent per step", "number", is_wide=True)
    columns = (_name("tensor x\npipeline"), *numbers(*times_of), sent_in, *numbers("tokens\n/s", "best at"))
    title = f"{gpu.gpu.key}: several GPUs over {known_links().links[gpu.gpu.link].name}, GiB per GPU"
    caption = f"largest tensor-parallel size that makes a decode step faster: {gpu.tensor_pays_up_to}"
    special = {"sequence": any(row.sequence for row in gpu.grids), "context": any(row.context for row in gpu.grids)}
    names = " and ".join(f"`parallel.{name}`" for name, is_there in special.items() if is_there)
    caption += f"; *: with {names}" if names else ""
    return Table(title, columns, rows, caption)


def _sequence(gpu: LlmGpu, grid: GridPlan, plan: SequencePlan) -> Table:
    """Return the savings from sharing a step's tokens."""
    links = (_figure(1e3 * plan.links_s_without), _figure(1e3 * plan.links_s))
    rows: list[tuple[Value, ...]] = [
        ("hidden states kept", size(plan.hidden_bytes_without), size(plan.hidden_bytes)),
        ("norms and residual sums written", size(plan.between_bytes_without), size(plan.between_bytes)),
        ("sent over links", size(plan.sent_bytes_without), size(plan.sent_bytes)),
        ("time of links, ms", *links),
    ]
    title = f"{gpu.gpu.key}: `parallel.sequence` on {grid.gpus} GPUs, in a step of {plan.tokens} new tokens, per GPU"
    return Table(title, (_name(""), *numbers("all tokens", "a share")), rows)


def _context(gpu: LlmGpu, grid: GridPlan, plan: ContextPlan) -> Table:
    """Return the savings and costs of sharing cached positions."""
    times = {
        "reading the cache, ms": (plan.read_s_without, plan.read_s),
        "time of links, ms": (plan.links_s_without, plan.links_s),
        "step, ms": (plan.step_s_without, plan.step_s),
    }
    rows: list[tuple[Value, ...]] = [
        ("KV cache", size(plan.cache_bytes_without), size(plan.cache_bytes)),
        ("sent over links", size(plan.sent_bytes_without), size(plan.sent_bytes)),
    ]
    rows += [(name, _figure(1e3 * without), _figure(1e3 * own)) for name, (without, own) in times.items()]
    title = f"{gpu.gpu.key}: `parallel.context` on {grid.gpus} GPUs, a decode step at {plan.length} tokens, per GPU"
    pays = "a step is faster at no length that the model takes"
    pays = pays if plan.pays_from is None else f"a step is faster from {plan.pays_from} tokens of each sequence on"
    return Table(title, (_name(""), *numbers("all positions", "a share")), rows, pays)


def _streaming(gpu: LlmGpu) -> Table:
    """Return the results of weight budgets."""
    rows: list[tuple[Value, ...]] = []
    for row in gpu.streaming:
        times = (_figure(1e3 * row.stream_s_per_step), _figure(1e3 * row.tpot_s), _rate(row.decode_tokens_per_second))
        sizes = (_count(row.largest_batch), _rate(row.most_decode_tokens_per_second), str(row.free_from_batch or "-"))
        budget = NumberCell(row.budget_bytes, f"{row.budget_bytes / 2**30:.4g}")
        rows.append((budget, size(row.streamed_bytes), _fits(row), *times, *sizes))
    speeds = ("streamed", "fits", "copies\nms", "TPOT\nms", "tokens\n/s")
    batches = ("largest\nbatch", "tokens/s\nwith it", "free from\nbatch")
    title = f"{gpu.gpu.key}: weights from the host over {known_links().links[gpu.gpu.host_link].name}"
    return Table(title, (_name("budget\nGiB"), *numbers(*speeds, *batches)), rows)


def _offload(gpu: LlmGpu) -> Table:
    """Return the best block of sequences for each cache location."""
    rows: list[tuple[Value, ...]] = []
    for row in gpu.offload:
        sizes = (NumberCell(used, f"{used / 2**30:.4g}") for used in (row.device_bytes, row.host_bytes))
        times = (row.prefill_s, row.decode_s, row.output_tokens_per_second)
        block = f"{row.micro_batch} x {row.micro_batches}"
        share = NumberCell(row.disk_share, f"{row.disk_share:.0%}")
        rows.append((row.caches, block, *sizes, share, *map(_figure, times), row.bottleneck))
    columns = numbers("block", "GPU\nGiB", "host\nGiB", "weights\non disk", "prompts\ns", "pass\ns", "tokens\n/s")
    title = f"{gpu.gpu.key}: {gpu.offload[0].stages} stages in turn (`--offload`)"
    return Table(title, (_name("caches"), *columns, _name("bottleneck")), rows)


def _curve(gpu: LlmGpu | VisionGpu) -> Table:
    """Return throughput and latency over the batch."""
    is_llm = isinstance(gpu, LlmGpu)
    rows: list[tuple[Value, ...]] = []
    for row in gpu.curve:
        cells: tuple[Value, ...]
        if isinstance(row, LlmSpeed):
            cells = (_ms(row.ttft_of_all), _ms(row.tpot), _bound(row.tpot), _rate(row.output_tokens_per_second))
            cost = _price(row.cost_per_million_output_tokens)
        else:
            cells = (_ms(row.latency), _bound(row.latency), _rate(row.images_per_second))
            cost = _price(row.cost_per_million_images)
        rows.append((_count(row.batch), *cells, cost))
    bound, price = Column("bound", "number", is_wide=is_llm), Column("$/M", "number", is_wide=True)
    times = numbers("TTFT of all, ms", "TPOT ms") if is_llm else numbers("latency ms")
    rate = numbers("tokens/s" if is_llm else "images/s")
    return Table(f"{gpu.gpu.key}: by batch size", (_name("batch"), *times, bound, *rate, price), rows)


def _name(title: str) -> Column:
    return Column(title, "name")


def _fits(row: LlmGpu | VisionGpu | FormatPlan | GridPlan | StreamingPlan) -> VerdictCell:
    if isinstance(row, LlmGpu | VisionGpu) and not row.takes_precision:
        return VerdictCell(False, "no dtype")
    return VerdictCell(row.fits, "yes" if row.fits else "no")


def _if_fits(gpu: LlmGpu | VisionGpu, figure: NumberCell | None) -> NumberCell | None:
    return figure if gpu.fits else None


def _bound(time: Floor) -> str:
    return time.bound.partition(",")[0]


def _count(value: int) -> NumberCell:
    return NumberCell(value, str(value))


def _ms(time: Floor) -> NumberCell:
    """Return a floor in ms, marked if it is memory's alone."""
    figure = _figure(1e3 * time.seconds)
    return figure if time.compute_s is not None else NumberCell(figure.value, f"{figure.text}?")


def _rate(value: float) -> NumberCell:
    """Return a rate per second, as an integer up to a million."""
    return NumberCell(value, f"{value:.0f}" if value < 1e6 else count_text(value).replace(" ", ""))


def _figure(value: float) -> NumberCell:
    return NumberCell(value, f"{value:.3g}" if value < 100 else f"{value:.0f}")


def _price(value: float | None) -> NumberCell | None:
    return None if value is None else NumberCell(value, f"{value:.3g}")
