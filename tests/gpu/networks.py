"""Networks written layer by layer, for questions about single layers."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

from tests.simulated_tensorrt.plans import PlannedNetwork
from trtkit.network.input_spec import ProfileShapes
from trtkit.network.trt_errors import error_recorder
from trtkit.runtime.loaded_engine import LoadedEngine

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    import torch

    from tests.gpu.place import Place
    from trtkit.network.graph import Graph

    Shapes = Mapping[str, tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]]


def build_plan(place: Place, graph: Graph, shapes: Shapes, change: Callable[[Any], object] | None = None) -> Path:
    """Build a network as trtkit does, and return its plan.

    shapes: min, opt and max shape of each dynamic input, or min, opt and max values of a shape tensor.
    change: modifies the builder config.
    Raises RuntimeError if TensorRT does not build it.
    """
    trt, builder = place.backend.trt, graph.builder
    builder.error_recorder = errors = error_recorder(place.backend)
    config, profile = builder.create_builder_config(), builder.create_optimization_profile()
    config.clear_flag(trt.BuilderFlag.TF32)
    if change is not None:
        change(config)
    for name, bounds in shapes.items():
        inputs = map(graph.network.get_input, range(graph.network.num_inputs))
        is_shape = next(each for each in inputs if each.name == name).is_shape_tensor
        (profile.set_shape_input if is_shape else profile.set_shape)(name, *bounds)
    if shapes:
        config.add_optimization_profile(profile)
    built = builder.build_serialized_network(graph.network, config)
    if built is None:
        raise RuntimeError(f"TensorRT does not build the network: {'; '.join(errors.texts)}")
    plan = bytes(built)
    if place.simulated is not None:
        profiles = ({name: ProfileShapes(*bounds) for name, bounds in shapes.items()},) if shapes else ()
        planned = PlannedNetwork(graph.layers(), profiles)
        place.simulated.plans.add_network(plan, planned)
    path = place.scratch / "plans" / f"{hashlib.sha256(plan).hexdigest()}.plan"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(plan)
    return path


class Bound:
    """An engine with bound inputs and outputs, captured in a CUDA graph: a run copies nothing."""

    def __init__(self, place: Place, plan: Path, inputs: Mapping[str, torch.Tensor]) -> None:
        self._place, self.stream = place, place.device.stream()
        self._engine = LoadedEngine(place.backend, plan, self.stream)
        shapes = {name: tuple(value.shape) for name, value in inputs.items()}
        context = self._engine.context_for(shapes, is_captured=True)
        self._inputs = {name: self.stream.empty(value.shape, value.dtype) for name, value in inputs.items()}
        for name, memory in self._inputs.items():
            memory.copy_(inputs[name])
            context.set_input(name, tuple(memory.shape), memory)
        tensors = self._engine.outputs
        self.outputs = {name: self.stream.empty(context.shape(name), each.dtype) for name, each in tensors.items()}
        for name, memory in self.outputs.items():
            context.set_address(name, memory)
        place.synchronize()
        context.enqueue()  # so that TensorRT's setup at first use is not captured
        place.synchronize(self.stream)
        graph = self.stream.capture(context.enqueue)
        if graph is None:
            raise RuntimeError("the launch was not captured")
        self._graph = graph

    def run(self) -> dict[str, torch.Tensor]:
        """Run the engine; return the outputs on the host."""
        self._graph.replay()
        self._place.synchronize(self.stream)
        return {name: value.cpu() for name, value in self.outputs.items()}

    def median_ms(self) -> float:
        """Return the median time of a run."""
        return self._place.median_ms(self._graph.replay, self.stream)


def relative_rms(ours: torch.Tensor, theirs: torch.Tensor) -> float:
    """Return ||ours - theirs|| / ||theirs||."""
    ours, theirs = ours.double(), theirs.double()
    return float((ours - theirs).norm() / theirs.norm())
