"""Capacity planning without a GPU: a model's exact counts against GPUs' published figures, and the assumptions."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from trtkit.builder.decoders import (
    context_problems,
    is_packed,
    llm_options,
    most_prompt_tokens,
    most_row_tokens,
    sequence_problems,
)
from trtkit.builder.speculators import open_config_speculator, speculator_size
from trtkit.dtypes import FP32, dtype_of
from trtkit.errors import ConfigError, PlanError
from trtkit.files import scratch_folder
from trtkit.lora.targets import adapter_bytes
from trtkit.models.parallel import SINGLE, check_grid, grid_of
from trtkit.models.registry import decoder_spec
from trtkit.planning.count_network import count_bundle, count_config
from trtkit.planning.decoder_model import decoder_model, formulas, workload
from trtkit.planning.gpus import GPUS_PER_NODE
from trtkit.planning.jobs import COUNT_DECODER, CountRequest
from trtkit.planning.llm import cost_per_million, plan_llm
from trtkit.planning.memory import LARGEST_BATCH, RESERVE_BYTES, MemoryNeed, PackedRoom, largest
from trtkit.planning.paged import copied_pages
from trtkit.planning.quantized_by import quantized_of
from trtkit.planning.question import NO_DEMAND, Demand, Host, PlanningQuestion
from trtkit.planning.report import (
    CacheRead,
    LayerGroup,
    LayerWork,
    LlmReport,
    StepWork,
    VisionGpu,
    VisionReport,
    VisionSpeed,
)
from trtkit.planning.roofline import floor, intensity, unfused_s

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from trtkit.config.llm import LlmOptions
    from trtkit.jobs.runner import Runner
    from trtkit.models.spec import DecoderSpec
    from trtkit.planning.count_network import CountedNetwork
    from trtkit.planning.counts import GroupCounts, Mixture, NetworkCounts, Point
    from trtkit.planning.decoder_model import DecoderModel, Workload
    from trtkit.planning.gpus import PlannedGpu
    from trtkit.planning.paged import CopiedPages
    from trtkit.planning.report import Report
    from trtkit.planning.source import PlannedModel
    from trtkit.quantized_model import QuantizedModel


@dataclass(frozen=True)
class PlanRequest:
    """What to plan. Lengths in tokens; None for the defaults. prices: per hour, by GPU key.

    requests_per_second: the load to carry, in images for networks without prompts. host: memory and disk for offloading
    stages that run in turn.
    """

    gpus: Sequence[PlannedGpu]
    input_len: int | None = None
    output_len: int | None = None
    concurrency: int | None = None
    prices: Mapping[str, float] | None = None
    requests_per_second: float | None = None
    host: Host | None = None

    def demand(self, gpu: PlannedGpu) -> Demand:
        """Return the load, and a GPU's hourly price."""
        return Demand(self.requests_per_second, (self.prices or {}).get(gpu.key))


def make_plan(model: PlannedModel, request: PlanRequest, runner: Runner) -> Report:
    """Count the model's network and return the plan. Raises TrtkitError."""
    rate = request.requests_per_second
    if rate is not None and not 0 < rate < math.inf:
        raise PlanError(
            f"{rate:g} requests per second is not a load", "--requests-per-second", "give a positive number"
        )
    return _plan_vision(model, request, runner) if model.fields is None else _plan_llm(model, request, runner)


def llm_question(planned: PlannedModel, request: PlanRequest, runner: Runner) -> PlanningQuestion:
    """Count a language model's network; return it with its workload, with caches as if they were linear.

    Raises TrtkitError.
    """
    assert planned.fields is not None
    spec = decoder_spec(planned.fields, planned.where)
    options, dtype = llm_options(planned.config), dtype_of(planned.config.precision)
    model = decoder_model(planned.name, spec, dtype, planned.max_length)
    weights, cached = _head_bytes(planned, spec)
    model = replace(model, adapter_bytes=adapter_bytes(spec, options.lora, dtype))
    model = replace(model, head_bytes=weights, head_kv_bytes_per_token=cached)
    quantized = quantized_of(planned, spec)
    if quantized is not None:
        model = model.quantized_as(spec, quantized)
    is_sized = planned.config.llm is not None and bool(planned.config.llm.model_fields_set)
    work = workload(
        model,
        request.input_len,
        request.output_len,
        concurrency=request.concurrency or (options.max_batch_size if is_sized else 1),
        chunk=min(options.max_prefill_length, spec.most_new_tokens or options.max_prefill_length),
        slot_length=options.max_sequence_length if is_sized else 0,
    )
    grid = grid_of(planned.config)
    if grid != SINGLE:
        check_grid(spec, grid, planned.where)
        if problems := [*sequence_problems(planned.config, spec), *context_problems(planned.config)]:
            raise ConfigError(f"the config does not fit {planned.where}", problems)
    counts = _count(planned, quantized, work.length, runner)
    room = packed_room(options, model) if is_packed(planned.config) else None
    is_twice = planned.takes_vectors and spec.head.is_tied and grid == SINGLE  # in the engine, and next to it
    table = dtype.size_bytes(model.vocab_size * model.hidden_size) if is_twice else 0
    return PlanningQuestion(model, counts, work, spec, grid, options.lora, room, host=request.host, table_bytes=table)


def packed_room(options: LlmOptions, model: DecoderModel) -> PackedRoom:
    """Return the capacity of an engine with packed calls, independent of the workload."""
    types = {model.dtype, FP32}  # the product, and the logits
    logit_bytes = sum(dtype.size_bytes(model.vocab_size) for dtype in types) if options.logits == "all" else 0
    return PackedRoom(most_prompt_tokens(options), most_row_tokens(options), logit_bytes)


def _plan_llm(planned: PlannedModel, request: PlanRequest, runner: Runner) -> LlmReport:
    question, pages = _in_pages(llm_question(planned, request, runner), planned)
    model, counts, work = question.model, question.counts, question.work
    points = {"prefill": work.prefill(), "decode": work.decode()}
    windowed = model.windowed_kv_bytes(work.length)
    return LlmReport(
        model=model,
        source=planned.where,
        windowed_slot_bytes=windowed if model.has_windows else None,
        kv_window={
            window: CacheRead(tokens, question.reading(window).cache_traffic.at((work.concurrency, 1, tokens)))
            for window, tokens in work.read_lengths.items()
        },
        work=work,
        layers=_layers(counts, points),
        step={name: _step(counts, point) for name, point in points.items()},
        formulas=formulas(model, counts, work),
        gpus=tuple(plan_llm(question, gpu, request.demand(gpu)) for gpu in request.gpus),
        assumptions=(*_notes(planned), *llm_assumptions(question, pages)),
    )


def _head_bytes(planned: PlannedModel, spec: DecoderSpec) -> tuple[int, int]:
    """Return the bytes of the draft head's weights, and of its cache per token; zeros if there is none.

    Raises the errors of `open_config_speculator` for a head that does not fit.
    """
    record = None if planned.bundle is None else planned.bundle.manifest.decoder
    if record is not None and record.speculator is not None:
        return record.speculator.weight_bytes, record.speculator.kv_bytes_per_token
    quantize = planned.config.quantize
    is_cached_in_8_bits = quantize is not None and quantize.kv_cache is not None
    speculator = open_config_speculator(planned.config, spec, has_quantized_caches=is_cached_in_8_bits)
    if speculator is None:
        return 0, 0
    size = speculator_size(planned.config, speculator)
    return size.weight_bytes, size.kv_bytes_per_token


def _notes(planned: PlannedModel) -> list[str]:
    """Return notes on a language model's source and its speculator."""
    options, notes = llm_options(planned.config), [*planned.notes]
    if options.speculator is not None:
        notes.append("the head's weights and cache are counted; times are those without guesses, on one GPU")
    return notes


def _in_pages(question: PlanningQuestion, planned: PlannedModel) -> tuple[PlanningQuestion, CopiedPages | None]:
    """Return the question with paged caches, and what steps copy of them, if the config has paged caches."""
    model, spec = question.model, question.spec
    pages = copied_pages(planned.config, planned.backend, spec, model.cache_format)
    size = llm_options(planned.config).page_size
    if pages is None or size is None:
        if llm_options(planned.config).kv_window == "used":
            work = replace(question.work, reads_used=True)
            question = replace(question, counts=question.reading("used"), plain=question.counts, work=work)
        return question, None
    work = replace(question.work, page_tokens=size, copies_pages=pages.layers > 0)
    counts = question.counts.with_gathered_pages(pages)
    return replace(question, model=replace(model, page_tokens=size), counts=counts, work=work), pages


def _plan_vision(planned: PlannedModel, request: PlanRequest, runner: Runner) -> VisionReport:
    lengths = {"--input-len": request.input_len, "--output-len": request.output_len}
    meaningless = [option for option, value in lengths.items() if value is not None]
    if meaningless:
        what = f"{' and '.join(meaningless)}: `{planned.name}` is not a language model and takes no prompts"
        raise PlanError(what, "", "leave it out; `--concurrency` is the batch")
    if planned.bundle is not None:
        network = count_bundle(planned.bundle, runner)
    else:
        with scratch_folder() as folder:
            network = count_config(planned.config, folder, runner)
    low, high = network.batches
    batch = request.concurrency or low
    if low == high and batch != low:
        raise PlanError(f"the network takes batch {low} only, not {batch}", "--concurrency", f"use {low}")
    question = VisionQuestion(network, batch)
    return VisionReport(
        model_name=planned.name,
        source=planned.where,
        weight_bytes=network.counts.weight_bytes,
        batch=batch,
        profile=(low, high),
        shapes=network.shapes,
        layers=_layers(network.counts, {"run": (batch, 0, 0)}),
        step={"run": _step(network.counts, (batch, 0, 0))},
        gpus=tuple(plan_vision(question, gpu, request.demand(gpu)) for gpu in request.gpus),
        assumptions=(*planned.notes, *vision_assumptions(network)),
    )


def _count(planned: PlannedModel, quantized: QuantizedModel | None, length: int, runner: Runner) -> NetworkCounts:
    """Count a decoder's network in its own process."""
    fields = dict(planned.fields or {})
    return runner.run(
        COUNT_DECODER, CountRequest(planned.backend, planned.config, fields, planned.where, length, quantized)
    )


def _layers(counts: NetworkCounts, points: Mapping[str, Point]) -> tuple[LayerGroup, ...]:
    """Return each group's work and arithmetic intensity, by phase."""
    by_phase = {phase: counts.of_step(point).groups for phase, point in points.items()}
    return tuple(
        LayerGroup(
            group.name,
            group.layers,
            group.weight_bytes,
            {phase: _work(by_phase[phase][index], point) for phase, point in points.items()},
        )
        for index, group in enumerate(counts.groups)
    )


def _work(group: GroupCounts, point: Point) -> LayerWork:
    """Return a group's work at (B, S, T)."""
    products = {dtype: poly.at(point) for dtype, poly in group.products.items()}
    return LayerWork(group.flops.at(point), products, group.bytes.at(point), intensity(group, point))


def _step(counts: NetworkCounts, point: Point) -> StepWork:
    """Return the whole network's work at (B, S, T)."""
    activation_bytes, counts = counts.activation_bytes(point), counts.of_step(point)
    return StepWork(
        flops=counts.flops.at(point),
        products={dtype: poly.at(point) for dtype, poly in counts.products.items()},
        fused_bytes=counts.moved_bytes.at(point),
        cache_bytes=counts.cache_bytes.at(point),
        activation_bytes=activation_bytes,
    )


_ALWAYS = (
    "times are floors: the published dense rate and bandwidth reached in full, no launch, no transfer from the host",
    "memory is the published GB as 10^9 bytes; "
    f"{RESERVE_BYTES / 2**30:.0f} GiB of it is kept for the CUDA context and TensorRT",
    "activations are results that are alive between layers where nothing is fused: TensorRT needs less",
    "fp32 products run in fp32: trtkit builds without TF32",
)

_LINEAR = (
    "caches are linear; attention computes and reads whole slots, masked parts too, or a window of the tokens in use, "
    "which is copied before it is read: the row `reads` has both, by `llm.kv_window`"
)


def _tokens_for_memory(work: Workload, room: PackedRoom | None) -> str:
    if room is None:
        return f"{work.chunk} tokens a step for memory"
    return f"memory has room for steps of {room.prompts} tokens of prompts and {room.row} of each sequence that decodes"


def llm_assumptions(question: PlanningQuestion, pages: CopiedPages | None = None) -> list[str]:
    """Return the assumptions of an LLM plan. pages: what a step copies; None if caches are linear."""
    model, work, counts, room = question.model, question.work, question.counts, question.packed
    notes = [
        f"prompts of {work.input_len} tokens are prefilled whole for times, {_tokens_for_memory(work, room)}; "
        "all requests start together",
        f"decoding is timed where {work.mean_length} tokens are cached, the mean, of which a slot holds up to "
        f"{work.slot_length}: attention reads {work.decode()[2]}",
        _LINEAR if pages is None else _pages_note(work, pages),
        "other formats are arithmetic: engines are quantized as `quantize` in a config or the checkpoint says",
        f"several GPUs: links at their published bandwidth, {GPUS_PER_NODE} GPUs a node and InfiniBand between nodes, "
        "rings with NCCL's constants, nothing overlapped with computing; prompts pass a pipeline in parts, decode "
        "steps as a whole",
        "a budget for weights: all can be streamed, each once a step, at the published bandwidth of the link to the "
        "host, while the GPU computes; the memory that they pass through is not counted",
        "stages in turn (`--host-memory`): equal ones, as many as `parallel.pipeline`, else one of each layer; weights "
        "that the host has no room for are read from disk in every pass; a step takes as long as its slowest part",
        *_ALWAYS,
    ]
    if model.active_parameters < model.parameters:
        notes.append(_experts_note(model, counts.mixture))
    if counts.active is not None:
        read, limit = float(counts.active.share((1, 1, 1))), counts.active.bends_at - 1
        tokens = "one new token" if limit == 1 else f"up to {limit} new tokens"
        notes.append(
            f"a step of {tokens} reads rows of active neurons only, for one {read:.1%} of those of `up` and `down`; "
            "larger steps, several GPUs and other formats read all"
        )
    if model.quantized:
        notes.append("quantized layers compute in the type of codes and inputs; input factors (AWQ) are not counted")
    if model.kv_dtype.bits == 8:
        notes.append(_quantized_caches_note(model, pages))
    if model.has_windows:
        notes.append("sliding layers cache all tokens, as trtkit's engines do")
    return notes


def _quantized_caches_note(model: DecoderModel, pages: CopiedPages | None) -> str:
    """Describe the memory that 8-bit caches add; an engine that reads pages in place needs less than is counted."""
    room = "8-bit caches also need room for one step's new keys and values"
    if pages is not None and not pages.layers:
        return f"{room}; room for one layer's caches in {model.dtype} is counted too, though attention reads the codes"
    return f"{room}, and are read in {model.dtype} by one layer at a time"


def _pages_note(work: Workload, pages: CopiedPages) -> str:
    """Describe the memory of paged caches, and which of them a step copies."""
    takes = f"caches are pages of {work.page_tokens} tokens, of which a sequence takes whole ones, and one is nobody's"
    if not pages.layers:
        return f"{takes}; attention reads them where they are"
    layers = "all layers" if pages.share == 1 else f"{pages.layers} layers, {float(pages.share):.0%} of the caches,"
    return (
        f"{takes}; {layers} read, write and read again the pages of each sequence in every step, as if each ran "
        "in a call of its own: the row `reads` has what an engine's attention is given"
    )


def _experts_note(model: DecoderModel, mixture: Mixture | None) -> str:
    """Describe which experts a step reads."""
    share = f"{model.active_parameters / model.parameters:.0%} of all weights"
    if mixture is None:
        return f"a step reads all experts, which compute every token; those that one token needs are {share}"
    text = f"a step reads {mixture.top_k} experts for each new token, at most all {mixture.num_experts}"
    return f"{text}; what one token needs is {share}"


def vision_assumptions(network: CountedNetwork) -> list[str]:
    """Return the assumptions of a vision network's plan."""
    shapes = "; ".join(f"{name} {list(shape)}" for name, shape in network.shapes.items())
    low, high = network.batches
    known = f"counts hold for batch {low} alone" if low == high else "sizes but the batch are those of `opt`"
    return [
        f"{known} ({shapes} was described)",
        "the memory floor is weights, inputs and outputs once: all layers in one kernel; `unfused` is the other end",
        *_ALWAYS,
    ]


@dataclass(frozen=True)
class VisionQuestion:
    """A counted network and the number of simultaneous images."""

    network: CountedNetwork
    batch: int

    @property
    def is_one_batch(self) -> bool:
        """Whether counts are known for a single batch size only."""
        low, high = self.network.batches
        return low == high


def plan_vision(question: VisionQuestion, gpu: PlannedGpu, demand: Demand = NO_DEMAND) -> VisionGpu:
    """Return the whole plan for one GPU. Times are floors: no implementation of this network can be faster on it."""
    counts, batch = question.network.counts, question.batch
    need = memory_need(counts, batch)
    if question.is_one_batch:
        most = batch if need.total <= gpu.memory_bytes else 0
    else:
        most = largest(lambda size: memory_need(counts, size).total <= gpu.memory_bytes, LARGEST_BATCH)
    sizes = [] if question.is_one_batch else [2**power for power in range(most.bit_length()) if 2**power <= 256]
    takes = all(gpu.takes(dtype) for dtype in counts.products)
    fits, price = need.total <= gpu.memory_bytes, demand.price_per_hour
    own_speed = speed(counts, batch, gpu, price)
    return VisionGpu(
        gpu=gpu,
        memory=need,
        fits=fits,
        takes_precision=takes,
        largest_batch=most,
        speed=own_speed,
        load=demand.plan(own_speed.images_per_second, fits=fits and takes),
        curve=tuple(speed(counts, size, gpu, price) for size in sizes),
    )


def speed(counts: NetworkCounts, batch: int, gpu: PlannedGpu, price_per_hour: float | None) -> VisionSpeed:
    """Return latency and throughput of one batch."""
    latency = floor(counts, (batch, 0, 0), gpu)
    per_s = batch / latency.seconds
    unfused_ms = 1e3 * unfused_s(counts, (batch, 0, 0), gpu)
    return VisionSpeed(batch, latency, unfused_ms, per_s, cost_per_million(price_per_hour, per_s))


def memory_need(counts: NetworkCounts, batch: int) -> MemoryNeed:
    """Return the bytes of weights, and the peak bytes of live results without fusion."""
    return MemoryNeed(counts.weight_bytes, 0, counts.activation_bytes((batch, 0, 0)))
