"""Prepare, write and build all stages of a model, each step in a child process."""

from __future__ import annotations

import math
import shutil
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from trtkit.builder import encoder, vision_language
from trtkit.builder.decoders import converted_bytes, decoder_size, engine_bytes, makes_checkpoint, open_decoder
from trtkit.builder.encoder import is_of_encoder
from trtkit.builder.hybrids import open_hybrid
from trtkit.builder.jobs import (
    BUILD_STAGE,
    DIAGNOSE,
    PREPARE,
    PREPARE_TOWER,
    DiagnoseRequest,
    PrepareRequest,
    PrepareTowerRequest,
)
from trtkit.builder.room import BuildLoad, check_room, ranks_at_once
from trtkit.builder.stages import PlanOptions, Prepared, PreparedStage, StageRequest, StageResult
from trtkit.dtypes import dtype_of
from trtkit.errors import TrtkitError, UnsupportedOperatorsError
from trtkit.files import QUANTIZED
from trtkit.models.parallel import grid_of
from trtkit.network.targets import check_named_types
from trtkit.quantization.by_part import check_options, check_types
from trtkit.quantization.jobs import QUANTIZE_LLM, QuantizeRequest
from trtkit.quantization_methods import METHODS
from trtkit.sources.huggingface.wrapped_config import inner_name
from trtkit.sources.package_file import hf_folder
from trtkit.sources.safetensors_file import read_folder

if TYPE_CHECKING:
    from pathlib import Path

    from trtkit.builder.build_inputs import BuildInputs, Tower
    from trtkit.config.schema import ModelConfig
    from trtkit.config.targets import Target
    from trtkit.jobs.events import Step
    from trtkit.jobs.runner import Runner
    from trtkit.models.model import StagedModel
    from trtkit.network.input_spec import ResolvedProfile

_WRITTEN = ("decoder", "speculator")
"""Stages written from the language model's checkpoint."""


@dataclass(frozen=True)
class WrittenModel:
    """All stages, written and possibly built. ranks: each rank's result, by rank, for a decoder that several share.

    results: by stage; that of the first rank for a shared decoder.
    """

    prepared: Prepared
    results: tuple[StageResult, ...]
    ranks: tuple[StageResult, ...] = ()

    @property
    def steps(self) -> tuple[Step, ...]:
        """All steps that were done, in order."""
        return (*self.prepared.steps, *(step for result in self.all_results for step in result.steps))

    @property
    def all_results(self) -> tuple[StageResult, ...]:
        """The results of all stages and ranks, in the order of their engines."""
        return (*self.results, *self.ranks[1:])

    @property
    def profiles(self) -> tuple[ResolvedProfile, ...]:
        """The profiles of the model's own inputs; a language model's are derived from its network."""
        return self.prepared.profiles or self.results[-1].profiles


def plan_name(stage: str, rank: int | None = None) -> str:
    """Return the path of a stage's plan in the bundle. rank: of a grid; None if the stage has one engine."""
    return f"engines/{stage}.plan" if rank is None else f"engines/{stage}.rank{rank}.plan"


def plan_names(model: StagedModel) -> tuple[str, ...]:
    """Return the paths of all stages' and ranks' plans, in the order of `WrittenModel.all_results`."""
    count, decoder = grid_of(model.config).ranks, model.stages[-1].name
    if count == 1:
        return tuple(plan_name(stage.name) for stage in model.stages)
    earlier = (plan_name(stage.name) for stage in model.stages[:-1])
    return (*earlier, *(plan_name(decoder, rank) for rank in range(count)))


def write_stages(inputs: BuildInputs, folder: Path, runner: Runner, *, builds: bool) -> WrittenModel:
    """Write every stage's network in `folder`. builds: whether to build it with TensorRT too."""
    if builds:
        _check_quantization(inputs)
        if inputs.tower is not None:
            check_room(tower_load(inputs.model, inputs.tower), folder)
    prepared = prepare_stages(inputs, folder, runner)
    written = _write_all(inputs, prepared, folder, runner, builds=builds)
    for name in processor_files(inputs.model):
        source = hf_folder(inputs.config.source) / name
        if source.is_file():
            shutil.copyfile(source, folder / "model" / name)
    return written


def prepare_stages(inputs: BuildInputs, folder: Path, runner: Runner) -> Prepared:
    """Write the ONNX files of stages with ONNX parts, and quantize an LLM's checkpoint if configured."""
    model = inputs.model
    if model.interface == "arrays":
        return runner.run(PREPARE, PrepareRequest(model.config, folder, inputs.uses_plugins))
    tower = Prepared((), (), ())
    if inputs.tower is not None:
        tower = runner.run(PREPARE_TOWER, PrepareTowerRequest(inputs.tower.stage, folder, inputs.uses_plugins))
    steps = list(tower.steps)
    if makes_checkpoint(model.config):
        (folder / QUANTIZED).mkdir(parents=True)
        steps += runner.run(QUANTIZE_LLM, QuantizeRequest(model.config, folder / QUANTIZED)).steps
    written = [stage for stage in model.stages if stage.writer in _WRITTEN]
    stages = (PreparedStage(stage.name, stage.writer, stage.part_names) for stage in written)
    return Prepared(tuple(steps), (), (*tower.stages, *stages))


def _write_all(inputs: BuildInputs, prepared: Prepared, folder: Path, runner: Runner, *, builds: bool) -> WrittenModel:
    """Write the networks of every stage, and of every rank of a decoder; build them if requested."""
    count, sources = grid_of(inputs.config).ranks, tuple(file.path for file in inputs.sources)
    results: list[StageResult] = []
    ranks: list[StageResult] = []
    for stage in prepared.stages:
        request = stage_request(inputs.config, inputs.target, inputs.backend, stage, folder)
        request = replace(request, sources=sources, images=inputs.model.images)
        if stage.writer == "decoder" and count > 1:
            plans = [folder / plan_name(stage.name, rank) if builds else None for rank in range(count)]
            requests = [replace(request, plan=plan, rank=rank) for rank, plan in enumerate(plans)]
            built = runner.run_all(BUILD_STAGE, requests, _at_once(inputs, request, count), "ranks")
            ranks = [_of_rank(rank, result) for rank, result in enumerate(built)]
            results.append(ranks[0])
        else:
            results.append(run_stage(runner, replace(request, plan=folder / plan_name(stage.name) if builds else None)))
    return WrittenModel(prepared, tuple(results), tuple(ranks))


def _at_once(inputs: BuildInputs, request: StageRequest, ranks: int) -> int:
    """Return how many ranks of a decoder can be built side by side."""
    opened = open_decoder(inputs.model, request.quantized)
    rank_bytes = engine_bytes(opened.source, decoder_size(opened), ranks)
    return ranks_at_once(rank_bytes, inputs.config.build.max_threads)


def _of_rank(rank: int, result: StageResult) -> StageResult:
    """Return a rank's result with its steps named after the rank."""
    return replace(result, steps=tuple(replace(step, name=f"rank {rank} {step.name}") for step in result.steps))


def stage_request(
    config: ModelConfig, target: Target, backend: str, stage: PreparedStage, folder: Path
) -> StageRequest:
    """Return the request for writing a stage without building it."""
    options = config.build
    return StageRequest(
        stage=stage,
        backend=backend,
        options=PlanOptions(
            target.compute_capabilities,
            options.optimization_level,
            options.max_threads,
            options.workspace_gib,
            options.weight_streaming,
            options.sparse_weights,
        ),
        config=config.model_dump_json(),
        folder=folder,
        quantized=folder / QUANTIZED if makes_checkpoint(config) and stage.writer in _WRITTEN else None,
    )


def _check_quantization(inputs: BuildInputs) -> None:
    """Refuse types that the target does not support, before any work. Raises ConfigError."""
    config, model, target = inputs.config, inputs.model, inputs.target
    if config.quantize is None:
        return
    if model.spec is not None:
        quantization = open_hybrid(model).quantization
        types = {METHODS[method].dtype.name for method in quantization.methods} if quantization else set()
        check_named_types(types, target.compute_capabilities)
        return
    if inputs.tower is not None and inputs.tower.stage.quantize is not None:
        check_options(inputs.tower.stage.quantize, inputs.tower.stage.key)
        check_types(inputs.tower.stage.quantize, target)
    if model.interface == "arrays":
        check_options(config.quantize)
    if model.interface == "arrays" or makes_checkpoint(config):
        check_types(config.quantize, target)


def _is_of_tower(name: str) -> bool:
    return inner_name(name) is None


def tower_load(model: StagedModel, opened: Tower) -> BuildLoad:
    """Return the minimum load of the build: both networks in their precision, stored quantized weights at their size.

    A language model that the build quantizes first is counted when it is written.
    """
    arrays = read_folder(opened.stage.folder)[0]
    is_exported = is_of_encoder if model.has_encoder else _is_of_tower
    exported = sum(math.prod(array.shape) for name, array in arrays.items() if is_exported(name))
    tower_bytes = dtype_of(opened.stage.precision).size_bytes(exported)
    if makes_checkpoint(model.config):
        return BuildLoad(tower_bytes, exported, tower_bytes, tower_bytes)
    decoder = open_decoder(model)
    decoder_bytes = engine_bytes(decoder.source, decoder_size(decoder))
    return BuildLoad(decoder_bytes + tower_bytes, exported, tower_bytes, converted_bytes(decoder) + tower_bytes)


def run_stage(runner: Runner, request: StageRequest) -> StageResult:
    """Write a stage, and build it if requested. Raises UnsupportedOperatorsError with every unsupported node."""
    try:
        return runner.run(BUILD_STAGE, request)
    except UnsupportedOperatorsError as first:
        onnx = request.stage.onnx
        assert onnx is not None
        try:
            runner.run(DIAGNOSE, DiagnoseRequest(request.backend, onnx.path))
        except UnsupportedOperatorsError:
            raise
        except TrtkitError:
            raise first from None
        raise


def processor_files(model: StagedModel) -> tuple[str, ...]:
    """Return the source's files that define preprocessing of images or audio."""
    if model.takes_images:
        return vision_language.PROCESSOR_FILES
    return encoder.PROCESSOR_FILES if model.has_encoder else ()
