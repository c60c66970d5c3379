"""Run a hybrid: its stages in order, each handing on what the next ones take, whoever computes them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from trtkit.engine.hybrid_compile import stage_network
from trtkit.jobs.job import Context
from trtkit.reference import Executor, Options, constants_from_onnx

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import torch

    from trtkit.backends import Backend
    from trtkit.engine.hybrids import OpenedHybrid
    from trtkit.jobs.events import Listener
    from trtkit.network.hybrid import StageNetwork

Json = dict[str, Any]


class StageExecution(Protocol):
    """One stage, ready to run. Tensors have the names that the run plan gives them."""

    @property
    def input_names(self) -> Sequence[str]:
        """What it takes."""
        ...

    def run(self, inputs: Mapping[str, Any]) -> dict[str, torch.Tensor]:
        """Return the outputs by name."""
        ...

    def layer_seconds(self, inputs: Mapping[str, Any]) -> dict[str, float]:
        """Run once; return how long each layer took, in the order they ran."""
        ...


@dataclass(frozen=True, eq=False)
class HybridExecution:
    """All stages of a hybrid. output_names: the model's own outputs, in order."""

    stages: Sequence[StageExecution]
    output_names: Sequence[str]

    def run(self, inputs: Mapping[str, Any]) -> dict[str, torch.Tensor]:
        """Return the model's outputs by name for arrays or tensors by input name."""
        tensors: dict[str, Any] = dict(inputs)
        for stage in self.stages:
            tensors |= stage.run({name: tensors[name] for name in stage.input_names})
        return {name: tensors[name] for name in self.output_names}

    def layer_seconds(self, inputs: Mapping[str, Any]) -> dict[str, float]:
        """Run once; return how long each layer of each stage took, in the order they ran."""
        tensors, seconds = dict(inputs), dict[str, float]()
        for stage in self.stages:
            given = {name: tensors[name] for name in stage.input_names}
            seconds |= stage.layer_seconds(given)
            tensors |= stage.run(given)
        return seconds


class ReferenceStage:
    """A stage's network on the reference executor. seams: `part.output` tensors of the last run, where kept."""

    def __init__(self, backend: Backend, network: StageNetwork, onnx: Path | None) -> None:
        self.backend, self.network = backend, network
        parsed = constants_from_onnx(onnx) if onnx is not None else {}
        self.constants = {**parsed, **network.graph.constants}
        self._executor = Executor(backend, network.graph.network, Options(constants=self.constants))
        self.keeps_seams = False
        self.seams: dict[str, torch.Tensor] = {}

    @property
    def input_names(self) -> Sequence[str]:
        """What it takes."""
        return [spec.name for spec in self._executor.inputs]

    def run(self, inputs: Mapping[str, Any]) -> dict[str, torch.Tensor]:
        """Return the outputs by name."""
        kept = self.network.tensors if self.keeps_seams else {}
        found = self._executor.run(inputs, keep=kept.values() if kept else None)
        self.seams = {name: found[tensor] for name, tensor in kept.items()}
        return {name: found[name] for name in self._executor.output_names}

    def layer_seconds(self, inputs: Mapping[str, Any]) -> dict[str, float]:
        """Run once; return how long each layer took, in the order they ran."""
        return self._executor.layer_seconds(inputs)


def reference_hybrid(
    backend: Backend, opened: OpenedHybrid, stages: Sequence[Json], report: Listener
) -> HybridExecution:
    """Return a hybrid on the reference executor. stages: as `prepare_hybrid` or `stages_of_bundle` returns them."""
    made = [
        ReferenceStage(
            backend,
            stage_network(backend, opened, stage, Context(report, severity="ERROR")),
            Path(stage["onnx"]) if stage["onnx"] else None,
        )
        for stage in stages
    ]
    return HybridExecution(made, opened.output_names)


def engine_hybrid(backend: Backend, opened: OpenedHybrid, stages: Sequence[Json]) -> HybridExecution:
    """Return a hybrid on the GPU that is here: an engine for each stage, tensors between them stay on the device."""
    from trtkit.runtime.engine_execution import EngineExecution

    return HybridExecution([EngineExecution(backend, Path(stage["engine"])) for stage in stages], opened.output_names)
