"""A plan as tables for people."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rich.table import Table
from rich.text import Text

from trtkit.cli.tables import count_text, pairs, shape_text, size_text

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from rich.console import RenderableType

Json = dict[str, Any]
# More GPUs than this are compared in one table only, unless they were named.
_DETAILED = 3
_LEGEND = "* the layers alone; with caches, memory bounds every batch.  ? no compute rate is known: memory's time alone"


def plan_tables(plan: Json, *, is_chosen: bool) -> Iterator[RenderableType]:
    """Yield all tables of a plan. is_chosen: the GPUs were named, so each is shown on its own too."""
    is_llm = plan["kind"] == "llm"
    yield _model(plan) if is_llm else _network(plan)
    for phase in plan["step"]:
        yield _layers(plan, phase)
    yield _llm_gpus(plan) if is_llm else _vision_gpus(plan)
    yield Text(_LEGEND if is_llm else "? no compute rate is known: memory's time alone")
    if is_chosen and len(plan["gpus"]) <= _DETAILED:
        for gpu in plan["gpus"]:
            yield from _details(gpu, is_llm=is_llm)
    yield _assumed(plan["assumptions"])


def _assumed(lines: Sequence[str]) -> Table:
    """Return the assumptions as a list whose long lines hang."""
    table = Table(
        "", "", title="assumed:", title_justify="left", title_style="", show_header=False, box=None, padding=0
    )
    for line in lines:
        table.add_row("- ", line)
    return table


def gpu_table(facts: Sequence[Json]) -> Table:
    """Return the table of GPUs: memory, bandwidth, dense rates; a dash where no page that was read states one."""
    types = ("tf32", "fp16", "bf16", "fp8", "int8", "fp4")
    table = _numbers("dense 10^12 operations a second", ("gpu", "SM", "GB", "GB/s"), *types, "backends")
    for row in facts:
        rates = [row["dense_operations_per_s"].get(dtype) for dtype in types]
        shown = ["-" if rate is None else f"{rate / 1e12:.0f}" for rate in rates]
        numbers = (f"{row['memory_bytes'] / 1e9:.0f}", f"{row['bandwidth_bytes_per_s'] / 1e9:.0f}")
        libraries = " ".join(name.replace("tensorrt_rtx", "rtx").replace("tensorrt", "trt") for name in row["backends"])
        table.add_row(row["gpu"], str(row["compute_capability"]), *numbers, *shown, libraries)
    return table


def _model(plan: Json) -> Table:
    """Return what an LLM weighs, and what the formulas say of it."""
    model, work, step = plan["model"], plan["workload"], plan["step"]
    table = pairs(f"plan {model['name']}")
    parameters = f"{model['parameters']:,} parameters, {size_text(model['weight_bytes'])} in {model['dtype']}"
    table.add_row("model", f"{model['model_type']}, {model['layers']} layers, {parameters}")
    if model["quantized"]:
        table.add_row("quantized", model["quantized"])
    slot = f"{size_text(model['slot_bytes'])} a slot of {work['length']} tokens"
    table.add_row("KV cache", f"{size_text(model['kv_bytes_per_token'])} a token, {slot}")
    if plan["windowed_slot_bytes"] is not None:
        table.add_row("", f"{size_text(plan['windowed_slot_bytes'])} a slot if sliding layers kept their window only")
    lengths = f"{work['input_len']} + {work['output_len']} tokens, {work['concurrency']} at once"
    limit = f"; the longest is {model['max_length']}" if model["max_length"] else ""
    table.add_row("workload", lengths + limit)
    for phase, text in (("prefill", "one prompt"), ("decode", f"one step of {work['concurrency']}")):
        flops, moved = count_text(step[phase]["flops"]), size_text(step[phase]["fused_bytes"])
        table.add_row(phase, f"{text}: {flops}FLOP, {moved} at least, {_activations(step[phase])}")
    check = plan["formulas"]["decode_flops"]
    table.add_row("formula", f"2 P + 4 N H T L: {count_text(check['formula'])}FLOP a token, {check['ratio']:.4f} of it")
    memory = plan["gpus"][0]["memory"]
    parts = [f"{name} {size_text(memory[f'{name}_bytes'])}" for name in ("weights", "kv_cache", "activations")]
    table.add_row("memory", f"{size_text(memory['total_bytes'])}: {', '.join(parts).replace('_', ' ')}, and a reserve")
    return table


def _network(plan: Json) -> Table:
    """Return what a vision network weighs."""
    model, work, step = plan["model"], plan["workload"], plan["step"]["run"]
    table = pairs(f"plan {model['name']}")
    table.add_row("weights", size_text(model["weight_bytes"]))
    shapes = "; ".join(f"{name} {shape_text(shape)}" for name, shape in work["shapes"].items())
    table.add_row("input", shapes)
    low, high = work["profile"]
    table.add_row("batch", f"{work['batch']}; the profile has {low} to {high}")
    flops, moved = count_text(step["flops"]), size_text(step["fused_bytes"])
    table.add_row("a run", f"{flops}FLOP, {moved} at least, {_activations(step)}")
    return table


def _activations(step: Json) -> str:
    return f"activations {size_text(step['activation_bytes'])}"


def _layers(plan: Json, phase: str) -> Table:
    """Return work and arithmetic intensity of each kind of layer in a phase."""
    table = _numbers(f"{phase}: each kind of layer on its own", ("layers", "#"), "weights", "FLOP", "moved", "FLOP/B")
    for row in plan["layers"]:
        work = row[phase]
        sizes = (size_text(row["weight_bytes"]), f"{count_text(work['flops'])}", size_text(work["bytes"]))
        table.add_row(row["group"], str(row["layers"]), *sizes, f"{work['flops_per_byte']:.1f}")
    return table


def _llm_gpus(plan: Json) -> Table:
    headers = ["fits", "batch", "context", "TTFT\nms", "TPOT\nms", "bound", "tokens\n/s", "compute"]
    has_prices = any(gpu["cost_per_million_output_tokens"] is not None for gpu in plan["gpus"])
    table = _numbers("at best", ("gpu",), *headers, *(["$/M\nout"] if has_prices else []))
    for gpu in plan["gpus"]:
        row = [
            _fits(gpu),
            str(gpu["largest_batch"]),
            str(gpu["largest_context"]),
            _ms(gpu["ttft"]),
            _ms(gpu["tpot"]),
            _bound(gpu["tpot"]["bound"]),
            _if_fits(gpu, _rate(gpu["output_tokens_per_second"])),
            _turn(gpu),
        ]
        cost = _if_fits(gpu, _price(gpu["cost_per_million_output_tokens"]))
        table.add_row(gpu["gpu"], *row, *([cost] if has_prices else []))
    return table


def _turn(gpu: Json) -> str:
    """Return the batch from which on decoding is bound by compute."""
    if gpu["tpot"]["compute_ms"] is None:
        return "?"
    without = gpu["compute_bound_batch_without_caches"]
    return str(gpu["compute_bound_batch"] or ("never" if without is None else f"{without}*"))


def _vision_gpus(plan: Json) -> Table:
    has_prices = any(gpu["cost_per_million_images"] is not None for gpu in plan["gpus"])
    headers = ["fits", "batch", "latency\nms", "bound", "unfused\nms", "images\n/s"]
    table = _numbers("at best", ("gpu",), *headers, *(["$/M\nimages"] if has_prices else []))
    for gpu in plan["gpus"]:
        row = [
            _fits(gpu),
            str(gpu["largest_batch"]),
            _ms({"ms": gpu["latency_ms"], "compute_ms": gpu["compute_ms"]}),
            _bound(gpu["bound"]),
            _number(gpu["unfused_ms"]),
            _if_fits(gpu, _rate(gpu["images_per_second"])),
        ]
        cost = _if_fits(gpu, _price(gpu["cost_per_million_images"]))
        table.add_row(gpu["gpu"], *row, *([cost] if has_prices else []))
    return table


def _details(gpu: Json, *, is_llm: bool) -> Iterator[Table]:
    """Yield what one GPU does at other batches, formats and numbers of GPUs."""
    table = pairs(f"{gpu['gpu']}: {gpu['name']}")
    table.add_row("memory", f"{size_text(gpu['memory_bytes'])}, {gpu['bandwidth_bytes_per_s'] / 1e9:.0f} GB/s")
    table.add_row("built by", ", ".join(gpu["backends"]))
    table.add_row("takes", ", ".join(gpu["precisions"]))
    yield table
    if gpu["curve"]:
        yield _curve(gpu, is_llm=is_llm)
    if is_llm:
        yield _formats(gpu)
        yield _splits(gpu)


def _formats(gpu: Json) -> Table:
    """Return what other weights and caches would change."""
    formats = _numbers(f"{gpu['gpu']}: other formats", ("format",), "weights", "KV/token", "fits", "batch", "TPOT ms")
    for row in gpu["formats"]:
        sizes = (size_text(row["weight_bytes"]), size_text(row["kv_bytes_per_token"]))
        formats.add_row(row["name"], *sizes, _fits(row), str(row["largest_batch"]), _ms(row["tpot"]))
    return formats


def _splits(gpu: Json) -> Table:
    """Return what several GPUs would change."""
    headers = ("at\nonce", "GiB", "fits", "batch", "TTFT\nms", "TPOT\nms", "tokens\n/s", "sent")
    splits = _numbers(f"{gpu['gpu']}: several, GiB of each, links not timed", ("parallel",), *headers)
    for row in gpu["splits"]:
        numbers = (_ms(row["ttft"]), _ms(row["tpot"]), _rate(row["decode_tokens_per_second"]))
        need = f"{row['memory_per_gpu']['total_bytes'] / 2**30:.1f}"
        name, sent = f"{row['kind']} {row['gpus']}", size_text(row["sent_bytes_per_step"])
        splits.add_row(name, str(row["at_once"]), need, _fits(row), str(row["largest_batch"]), *numbers, sent)
    return splits


def _curve(gpu: Json, *, is_llm: bool) -> Table:
    """Return throughput and latency over the batch."""
    headers = ("TTFT of all ms", "TPOT ms", "tokens/s") if is_llm else ("latency ms", "bound", "images/s")
    table = _numbers(f"{gpu['gpu']}: by batch", ("batch",), *headers)
    for row in gpu["curve"]:
        cells = (row["ttft_of_all"], row["tpot"]) if is_llm else ({"ms": row["latency_ms"], **row},)
        rate = row["output_tokens_per_second" if is_llm else "images_per_second"]
        bound = () if is_llm else (_bound(row["bound"]),)
        table.add_row(str(row["batch"]), *map(_ms, cells), *bound, _rate(rate))
    return table


def _numbers(title: str, first: Sequence[str], *columns: str) -> Table:
    """Return a table whose first column is text and whose others are numbers, which never break."""
    table = Table(title=title, title_justify="left", title_style="bold", box=None, pad_edge=False, header_style="cyan")
    for index, column in enumerate((*first, *columns)):
        table.add_column(column, justify="right" if index else "left", no_wrap=True, overflow="fold")
    return table


def _fits(row: Json) -> str:
    if not row.get("takes_precision", True):
        return "no type"
    return "yes" if row["fits"] else "no"


def _if_fits(row: Json, text: str) -> str:
    return text if row["fits"] else "-"


def _bound(text: str) -> str:
    return text.partition(",")[0]


def _ms(found: Json) -> str:
    """Return a floor in ms, marked where it is memory's alone."""
    return _number(found["ms"]) + ("?" if found["compute_ms"] is None else "")


def _rate(value: float) -> str:
    """Return a rate a second, whole up to a million."""
    return f"{value:.0f}" if value < 1e6 else count_text(value).replace(" ", "")


def _number(value: float) -> str:
    return f"{value:.3g}" if value < 100 else f"{value:.0f}"


def _price(value: float | None) -> str:
    return "-" if value is None else f"{value:.3g}"
