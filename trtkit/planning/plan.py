"""Capacity before any GPU is rented: a model's exact counts against GPUs' published figures, as data."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from trtkit.dtypes import dtype_of
from trtkit.engine.decoders import llm_options
from trtkit.engine.speculators.head import head_size, open_head
from trtkit.errors import PlanError
from trtkit.files import scratch_folder
from trtkit.lora.targets import adapter_bytes
from trtkit.models.parallel import SINGLE, check_grid, grid_of
from trtkit.models.registry import decoder_spec
from trtkit.planning.assumptions import llm_assumptions, vision_assumptions
from trtkit.planning.count_network import count_bundle, count_config
from trtkit.planning.decoder_model import decoder_model, formulas, workload
from trtkit.planning.jobs import COUNT_DECODER, CountRequest
from trtkit.planning.llm import plan_llm
from trtkit.planning.load import Demand
from trtkit.planning.paged import copied_pages
from trtkit.planning.quantized_by import quantized_of
from trtkit.planning.question import Question
from trtkit.planning.report import CacheRead, LayerGroup, LayerWork, LlmReport, StepWork, VisionReport
from trtkit.planning.roofline import intensity
from trtkit.planning.vision import VisionQuestion, plan_vision

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from trtkit.jobs.runner import Runner
    from trtkit.models.spec import DecoderSpec
    from trtkit.planning.counts import Counts, Group
    from trtkit.planning.gpus import PlannedGpu
    from trtkit.planning.multilinear import Point
    from trtkit.planning.paged import CopiedPages
    from trtkit.planning.report import Report
    from trtkit.planning.source import PlannedModel
    from trtkit.quantized_model import QuantizedModel


@dataclass(frozen=True)
class PlanRequest:
    """What a plan is asked for. Lengths in tokens; None for the defaults. prices: per hour, by GPU key.

    requests_per_second: a load to carry, of images for networks that take no prompts.
    """

    gpus: Sequence[PlannedGpu]
    input_len: int | None = None
    output_len: int | None = None
    concurrency: int | None = None
    prices: Mapping[str, float] | None = None
    requests_per_second: float | None = None

    def demand(self, gpu: PlannedGpu) -> Demand:
        """Return the load, and the price of an hour on a GPU."""
        return Demand(self.requests_per_second, (self.prices or {}).get(gpu.key))


def make_plan(model: PlannedModel, request: PlanRequest, runner: Runner) -> Report:
    """Count the model's network and return the plan. Raises TrtkitError."""
    rate = request.requests_per_second
    if rate is not None and not 0 < rate < math.inf:
        raise PlanError(
            f"{rate:g} requests per second is not a load", "--requests-per-second", "give a positive number"
        )
    return _plan_vision(model, request, runner) if model.fields is None else _plan_llm(model, request, runner)


def llm_question(planned: PlannedModel, request: PlanRequest, runner: Runner) -> Question:
    """Count a language model's network, and return it with the work it is to do, caches as if they were linear.

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
        (request.input_len, request.output_len),
        concurrency=request.concurrency or (options.max_batch_size if is_sized else 1),
        chunk=min(options.max_prefill_length, spec.most_new_tokens or options.max_prefill_length),
        slot_length=options.max_sequence_length if is_sized else 0,
    )
    grid = grid_of(planned.config)
    if grid != SINGLE:
        check_grid(spec, grid, planned.where)
    counts = _count(planned, quantized, work.length, runner)
    return Question(model, counts, work, spec, grid, options.lora)


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
            window: CacheRead(tokens, counts.cache_bytes.at((work.concurrency, 1, tokens)))
            for window, tokens in work.read_lengths.items()
        },
        work=work,
        layers=_layers(counts, points),
        step={name: _step(counts, point) for name, point in points.items()},
        formulas=formulas(model, counts, work),
        gpus=tuple(plan_llm(question, gpu, request.demand(gpu)) for gpu in request.gpus),
        assumptions=(*_notes(planned), *llm_assumptions(model, work, counts.mixture, pages)),
    )


def _head_bytes(planned: PlannedModel, spec: DecoderSpec) -> tuple[int, int]:
    """Return the weights of the head that guesses tokens, and its cache of one token; zeros if there is none.

    Raises what `open_head` does for a head that does not fit.
    """
    record = None if planned.bundle is None else planned.bundle.manifest.decoder
    if record is not None and record.speculator is not None:
        return record.speculator.weight_bytes, record.speculator.kv_bytes_per_token
    head = open_head(planned.config, spec, has_quantized_caches=False)
    if head is None:
        return 0, 0
    size = head_size(planned.config, head)
    return size.weight_bytes, size.kv_bytes_per_token


def _notes(planned: PlannedModel) -> list[str]:
    """Return what is to be said of a language model's source and of its speculator."""
    options, notes = llm_options(planned.config), [*planned.notes]
    if options.speculator is not None:
        notes.append("the head's weights and cache are counted; times are those without guesses, on one GPU")
    return notes


def _in_pages(question: Question, planned: PlannedModel) -> tuple[Question, CopiedPages | None]:
    """Return the question with caches in pages, and what steps copy of them, if the config has such caches."""
    model, spec = question.model, question.spec
    pages = copied_pages(planned.config, planned.backend, spec, model.cache_format)
    size = llm_options(planned.config).page_size
    if pages is None or size is None:
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


def _count(planned: PlannedModel, quantized: QuantizedModel | None, length: int, runner: Runner) -> Counts:
    """Count a decoder's network in a process of its own."""
    fields = dict(planned.fields or {})
    return runner.run(
        COUNT_DECODER, CountRequest(planned.backend, planned.config, fields, planned.where, length, quantized)
    )


def _layers(counts: Counts, points: Mapping[str, Point]) -> tuple[LayerGroup, ...]:
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


def _work(group: Group, point: Point) -> LayerWork:
    """Return a group's work at (B, S, T)."""
    products = {dtype: poly.at(point) for dtype, poly in group.products.items()}
    return LayerWork(group.flops.at(point), products, group.bytes.at(point), intensity(group, point))


def _step(counts: Counts, point: Point) -> StepWork:
    """Return the whole network's work at (B, S, T)."""
    activation_bytes, counts = counts.activation_bytes(point), counts.of_step(point)
    return StepWork(
        flops=counts.flops.at(point),
        products={dtype: poly.at(point) for dtype, poly in counts.products.items()},
        fused_bytes=counts.moved_bytes.at(point),
        cache_bytes=counts.cache_bytes.at(point),
        activation_bytes=activation_bytes,
    )
