"""The plan of a decoder-only LLM for one GPU model: what fits, its best-case speed, and alternatives."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from trtkit.planning.formats import FORMATS, in_format, quantized_bytes
from trtkit.planning.grids import plan_grids, tensor_pays_up_to
from trtkit.planning.memory import Footprint
from trtkit.planning.offload import plan_offload
from trtkit.planning.question import NO_DEMAND
from trtkit.planning.report import FormatPlan, LlmGpu, LlmSpeed, MixedStep
from trtkit.planning.roofline import compute_bound_batch, floor, mixed_floor, unfused_s
from trtkit.planning.streaming import plan_streaming

if TYPE_CHECKING:
    from trtkit.planning.counts import NetworkCounts
    from trtkit.planning.formats import Format
    from trtkit.planning.gpus import PlannedGpu
    from trtkit.planning.question import Demand, PlanningQuestion

_NO_LIMIT = 2**24
"""Upper bound of the search for a context, for models without a limit of their own."""
_LEAST_CHUNK = 64
"""Tokens of the smallest planned prompt chunk, unless the prompt is shorter."""


def plan_llm(question: PlanningQuestion, gpu: PlannedGpu, demand: Demand = NO_DEMAND) -> LlmGpu:
    """Return the whole plan for one GPU. Times are floors: no implementation of this network can be faster on it."""
    model, counts, work = question.model, question.counts, question.work
    footprint = footprint_of(question, counts)
    need = footprint.need(work.concurrency, work.length)
    batch = footprint.largest_batch(work.length, gpu.memory_bytes)
    limit = model.max_length or _NO_LIMIT
    formats = FORMATS[:1] if model.quantized else FORMATS  # others are shares of the network's own type
    context = footprint.largest_context(work.concurrency, gpu.memory_bytes, limit)
    takes = all(gpu.takes(name) for name in (model.dtype.name, *model.types))
    fits, price = need.total <= gpu.memory_bytes, demand.price_per_hour
    speed = speeds(question, gpu, work.concurrency, price)
    return LlmGpu(
        gpu=gpu,
        takes_precision=takes,
        memory=need,
        fits=fits,
        largest_batch=batch,
        largest_context=context,
        largest_context_is_the_models=context == model.max_length > 0,
        compute_bound_batch=compute_bound_batch(counts, work.decode()[2], gpu),
        compute_bound_batch_without_caches=compute_bound_batch(counts, 0, gpu),
        speed=speed,
        tpot_by_kv_window={
            window: floor(question.reading(window), (work.concurrency, 1, tokens), gpu)
            for window, tokens in work.read_lengths.items()
        },
        mixed_steps=mixed_steps(question, gpu),
        load=demand.plan(speed.output_tokens_per_second / work.output_len, fits=fits and takes),
        curve=tuple(speeds(question, gpu, size, price) for size in _batches(batch)),
        formats=tuple(_in_format(question, gpu, form) for form in formats if form.fits(gpu) and model.takes(form)),
        grids=plan_grids(question, gpu),
        tensor_pays_up_to=tensor_pays_up_to(question, gpu),
        streaming=plan_streaming(question, gpu, footprint),
        offload=plan_offload(question, gpu),
    )


def speeds(question: PlanningQuestion, gpu: PlannedGpu, batch: int, price_per_hour: float | None = None) -> LlmSpeed:
    """Return times and throughput of `batch` simultaneous requests: all prompts, then every token of all answers."""
    work, counts = question.work, question.counts
    first, prefill = (floor(counts, work.prefill(size), gpu) for size in (1, batch))
    decode = floor(counts, work.decode(batch), gpu)
    seconds = prefill.seconds + (work.output_len - 1) * decode.seconds
    per_s = batch * work.output_len / seconds
    return LlmSpeed(
        batch=batch,
        ttft=first,
        ttft_of_all=prefill,
        tpot=decode,
        tpot_unfused_ms=1e3 * unfused_s(counts, work.decode(batch), gpu),
        request_ms=1e3 * seconds,
        decode_tokens_per_second=batch / decode.seconds,
        output_tokens_per_second=per_s,
        total_tokens_per_second=batch * work.length / seconds,
        cost_per_million_output_tokens=cost_per_million(price_per_hour, per_s),
    )


def mixed_steps(question: PlanningQuestion, gpu: PlannedGpu) -> tuple[MixedStep, ...]:
    """Return steps that decode and read a prompt chunk, of 64 tokens, doubling up to the workload's chunk."""
    work, counts = question.work, question.counts
    steps = []
    for tokens in sorted({*(size for size in _powers(work.chunk) if size >= _LEAST_CHUNK), work.chunk}):
        parts = work.decode(), work.last_chunk(tokens)
        separate_ms = sum(1e3 * floor(counts, part, gpu).seconds for part in parts)
        steps.append(MixedStep(tokens, mixed_floor(counts, parts, gpu), separate_ms))
    return tuple(steps)


def cost_per_million(price_per_hour: float | None, per_second: float) -> float | None:
    """Return the price of a million results at `per_second`, None without a price."""
    return None if price_per_hour is None else price_per_hour / 3600 / per_second * 1e6


def footprint_of(question: PlanningQuestion, counts: NetworkCounts) -> Footprint:
    """Return the model's memory on one GPU."""
    model = question.model
    sizes = model.weight_bytes + question.table_bytes, model.kv_bytes_per_token
    footprint = Footprint(counts, *sizes, question.work.chunk, model.vocab_size, model.keeps_new, model.state_bytes)
    head, per_token = model.head_bytes, model.head_kv_bytes_per_token
    footprint = replace(footprint, head=head, head_per_token=per_token, packed=question.packed)
    return replace(footprint, adapters=model.adapter_bytes, page_tokens=model.page_tokens)


def _batches(most: int) -> list[int]:
    """Return the powers of two below the largest batch, followed by that batch."""
    return sorted({*_powers(most), *([most] if most else [])})


def _powers(most: int) -> list[int]:
    return [2**power for power in range(most.bit_length())]


def _in_format(question: PlanningQuestion, gpu: PlannedGpu, form: Format) -> FormatPlan:
    """Return the plan for a format of weights and cache."""
    model, work = question.model, question.work
    counts = in_format(question.counts, model.dtype, form)
    saved = quantized_bytes(question.counts, model.dtype, form.weight_bits)
    kv = model.kv_bytes_per_token * (form.kv_bits or model.dtype.bits) // model.dtype.bits
    keeps_new = form.kv_bits is not None or model.keeps_new
    whole = footprint_of(question, counts)
    footprint = replace(whole, weights=whole.weights - saved, kv_per_token=kv, keeps_new=keeps_new)
    return FormatPlan(
        name=form.name,
        weight_bytes=footprint.weights,
        kv_bytes_per_token=kv,
        fits=footprint.need(work.concurrency, work.length).total <= gpu.memory_bytes,
        largest_batch=footprint.largest_batch(work.length, gpu.memory_bytes),
        ttft=floor(counts, work.prefill(), gpu),
        tpot=floor(counts, work.decode(), gpu),
    )
