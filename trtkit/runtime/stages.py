"""Execution of a model of arrays: its stages in order, each passing its outputs to the next, on any executor."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Protocol

from trtkit.builder.parts_stage import parts_network
from trtkit.jobs.events import ignore
from trtkit.network.onnx.parse import parse_onnx
from trtkit.reference import Executor, Options, constants_from_onnx, read_layers
from trtkit.runtime.runtime_cache import cache_file
from trtkit.runtime.weight_budget import over_budget

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    import torch

    from trtkit.backends import Backend
    from trtkit.builder.hybrids import OpenedHybrid
    from trtkit.builder.stages import PlanFile, PreparedStage
    from trtkit.jobs.events import Listener
    from trtkit.network.layer_graph import LayerGraph
    from trtkit.runtime.device import Device, Stream


def parsed_run(backend: Backend, onnx: Path) -> Callable[[Mapping[str, Any]], dict[str, torch.Tensor]]:
    """Return a function that runs the network parsed by TensorRT from a file on the reference executor."""
    return Executor(parsed_layers(backend, onnx)).run


class StageExecution(Protocol):
    """A stage that is ready to run. Tensors have the names that the run plan gives them."""

    @property
    def input_names(self) -> Sequence[str]:
        """Names of its inputs."""
        ...

    def run(self, inputs: Mapping[str, Any]) -> dict[str, torch.Tensor]:
        """Return the outputs by name."""
        ...

    def layer_seconds(self, inputs: Mapping[str, Any]) -> dict[str, float]:
        """Run once; return each layer's time in seconds, in execution order."""
        ...


@dataclass(frozen=True, eq=False)
class StagesExecution:
    """All stages of a model. output_names: the model's own outputs, in order.

    stream: the device stream that stages run on, from which the outputs are copied to the host.
    """

    stages: Sequence[StageExecution]
    output_names: Sequence[str]
    stream: Stream | None = field(default=None, kw_only=True)

    def run(self, inputs: Mapping[str, Any]) -> dict[str, torch.Tensor]:
        """Return the model's outputs by name. inputs: arrays or tensors by name."""
        tensors: dict[str, Any] = dict(inputs)
        for stage in self.stages:
            tensors |= stage.run({name: tensors[name] for name in stage.input_names})
        if self.stream is None:
            return {name: tensors[name] for name in self.output_names}
        self.stream.synchronize()
        return {name: tensors[name].to("cpu", copy=True) for name in self.output_names}

    def layer_seconds(self, inputs: Mapping[str, Any]) -> dict[str, float]:
        """Run once; return the time of each layer of each stage in seconds, in execution order."""
        tensors, seconds = dict(inputs), dict[str, float]()
        for stage in self.stages:
            stage_inputs = {name: tensors[name] for name in stage.input_names}
            seconds |= stage.layer_seconds(stage_inputs)
            tensors |= stage.run(stage_inputs)
        return seconds


class ReferenceStage:
    """A stage's network on the reference executor. seams: `part.output` tensors of the last run, if kept.

    tensors: the network's name for every `part.output`. is_fast: see the executor's Options.
    """

    def __init__(self, layers: LayerGraph, tensors: Mapping[str, str] | None = None, *, is_fast: bool = False) -> None:
        self.layers, self.tensors = layers, tensors or {}
        self._executor = Executor(layers, Options(is_fast=is_fast))
        self.has_session = self._executor.has_session
        self.keeps_seams = False
        self.seams: dict[str, torch.Tensor] = {}

    @property
    def input_names(self) -> Sequence[str]:
        return [spec.name for spec in self._executor.inputs]

    @property
    def output_names(self) -> Sequence[str]:
        return self._executor.output_names

    def run(self, inputs: Mapping[str, Any]) -> dict[str, torch.Tensor]:
        kept = self.tensors if self.keeps_seams else {}
        outputs = self._executor.run(inputs, keep=kept.values() if kept else None)
        self.seams = {name: outputs[tensor] for name, tensor in kept.items()}
        return {name: outputs[name] for name in self._executor.output_names}

    def layer_seconds(self, inputs: Mapping[str, Any]) -> dict[str, float]:
        """Run once; return each layer's time in seconds, in execution order."""
        return self._executor.layer_seconds(inputs)


def reference_stages(
    backend: Backend,
    stages: Sequence[PreparedStage],
    opened: OpenedHybrid | None,
    report: Listener = ignore,
    *,
    is_fast: bool = False,
) -> StagesExecution:
    """Return a model of arrays on the reference executor.

    opened: the source of a model that a family writes in parts. is_fast: see the executor's Options.
    """
    running = [ReferenceStage(*stage_layers(backend, stage, opened, report), is_fast=is_fast) for stage in stages]
    return StagesExecution(running, running[-1].output_names if opened is None else opened.output_names)


def stage_layers(
    backend: Backend, stage: PreparedStage, opened: OpenedHybrid | None, report: Listener = ignore
) -> tuple[LayerGraph, Mapping[str, str]]:
    """Return the layers of a stage's network, and its tensors by `part.output`. opened: see `reference_stages`."""
    if opened is None:
        assert stage.onnx is not None
        return parsed_layers(backend, stage.onnx.path), {}
    written = parts_network(backend, opened, stage, report)
    parsed = {} if stage.onnx is None else constants_from_onnx(stage.onnx.path)
    layers = read_layers(backend, written.graph.network, {**parsed, **written.graph.constants})
    return replace(layers, owner=written), written.tensors


def parsed_layers(backend: Backend, onnx: Path) -> LayerGraph:
    """Return the layers of the network that TensorRT parses from a file."""
    network = parse_onnx(backend, onnx, "ERROR")
    return replace(read_layers(backend, network.definition, constants_from_onnx(onnx)), owner=network)


def engine_stages(
    backend: Backend,
    plans: Sequence[PlanFile],
    output_names: Sequence[str],
    device: Device,
    *,
    has_cuda_graphs: bool = False,
) -> StagesExecution:
    """Return a model as engines on a device, one per stage; tensors between them stay on the device."""
    from trtkit.runtime.loaded_engine import EngineExecution

    stream = device.stream()
    running = [
        EngineExecution(
            backend, plan.path, stream, cache_file(plan.sha256, device.environment), has_cuda_graphs=has_cuda_graphs
        )
        for plan in plans
    ]
    return StagesExecution(running, output_names, stream=stream)


def stream_weights(model: StagesExecution, budget_bytes: int) -> None:
    """Keep `budget_bytes` of a model's weights on the GPU, divided proportionally among the engines.

    Raises RequestError for more bytes than can be streamed.
    """
    from trtkit.runtime.loaded_engine import EngineExecution

    engines = [stage for stage in model.stages if isinstance(stage, EngineExecution)]
    total = sum(engine.streamable_bytes for engine in engines)
    if budget_bytes > total:
        raise over_budget(budget_bytes, total)
    for engine in engines:
        engine.stream_weights(budget_bytes * engine.streamable_bytes // max(total, 1))
