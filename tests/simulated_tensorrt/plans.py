"""Which network a plan holds: plans cannot be read here, so a bundle's layers say it."""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

import torch

from trtkit.backends.backend import BACKENDS
from trtkit.builder.plan_file import allocates
from trtkit.config.targets import load_target
from trtkit.errors import ExecutionError
from trtkit.reference import Executor, LayerGraph, Options

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from trtkit.bundle.bundle import Bundle
    from trtkit.network.input_spec import ResolvedProfile

    Shapes = Mapping[str, tuple[int, ...]]

_FEW_ELEMENTS = 1 << 18
"""Of inputs: those of small language models, where most of the time goes into calls of torch."""


@dataclass(frozen=True)
class _NoOthers:
    """Ranks of which shapes are all that matters: none waits for another."""

    count: int
    rank: int = 0

    def exchange(self, _key: str, tensor: torch.Tensor) -> list[torch.Tensor]:
        """Return tensors of the same shape."""
        return [tensor] * self.count

    def leave(self) -> None:
        """Do nothing."""


@dataclass(frozen=True, eq=False)
class PlannedNetwork:
    """A plan's network. profiles: of its own inputs.

    ranks: how many share it, each with a plan of its own. weight_bytes: that it holds. is_streamable: whether they may
    stay on the host. requires_user_memory: whether it was built with `BuilderFlag.REQUIRE_USER_ALLOCATION`.
    compute_capabilities: GPUs it was built for; of any that the library supports if empty. version: of the library.
    """

    layers: LayerGraph
    profiles: tuple[ResolvedProfile, ...]
    ranks: int = 1
    weight_bytes: int = 0
    is_streamable: bool = False
    requires_user_memory: bool = False
    compute_capabilities: tuple[int, ...] = ()
    version: str = ""

    def at(self, shapes: Shapes) -> LayerGraph:
        """Return the layers with all sizes at the inputs' shapes; unchanged if one follows from the data."""
        seen = dict(shapes)
        try:
            _shapes(self._shape_executor, shapes, lambda name, value: seen.update({name: tuple(value.shape)}))
        except (ExecutionError, NotImplementedError):
            return self.layers
        specs = [spec and replace(spec, shape=seen.get(spec.name, spec.shape)) for spec in self.layers.specs]
        return replace(self.layers, specs=tuple(specs))

    def output_shapes(self, shapes: Shapes) -> dict[str, tuple[int, ...]]:
        """Return the outputs' shapes at those of all inputs, -1 where a size follows from the data."""
        key = tuple(shapes.items())
        if key not in self._known:
            self._known[key] = self._of_zeros(shapes) or self._without_values(shapes)
        return self._known[key]

    @cached_property
    def _known(self) -> dict[tuple[tuple[str, tuple[int, ...]], ...], dict[str, tuple[int, ...]]]:
        return {}

    def _of_zeros(self, shapes: Shapes) -> dict[str, tuple[int, ...]]:
        """Compute small inputs of zeros, which takes a fraction of the time of `_without_values`.

        Empty if zeros cannot tell: sizes follow from data, or the network does not take zeros.
        """
        if self._has_sizes_from_data or sum(map(math.prod, shapes.values())) > _FEW_ELEMENTS:
            return {}
        try:
            return _shapes(self._zeros_executor, shapes, device="cpu")
        except (ExecutionError, NotImplementedError):
            return {}

    @cached_property
    def _has_sizes_from_data(self) -> bool:
        inputs = map(self.layers.spec, self.layers.inputs)
        return allocates(node.kind for node in self.layers.nodes) or any(spec.is_shape for spec in inputs)

    def _without_values(self, shapes: Shapes) -> dict[str, tuple[int, ...]]:
        try:
            return _shapes(self._shape_executor, shapes)
        except (ExecutionError, NotImplementedError):  # data is not there: some output's size, or all, follow from it
            return {name: size for slot in self.layers.outputs for name, size in self._one_shape(slot, shapes).items()}

    @cached_property
    def _zeros_executor(self) -> Executor:
        return _executor(self.layers, self.ranks, "cpu")

    @cached_property
    def _shape_executor(self) -> Executor:
        return _executor(self.layers, self.ranks, "meta")

    def _one_shape(self, slot: int, shapes: Shapes) -> dict[str, tuple[int, ...]]:
        """Return the shape of one output, as far as the network declares it if it follows from the data."""
        try:
            return _shapes(_executor(replace(self.layers, outputs=(slot,)), self.ranks, "meta"), shapes)
        except (ExecutionError, NotImplementedError):
            spec = self.layers.spec(slot)
            return {spec.name: spec.shape or ()}


class Plans:
    """The networks of bundles' plans, opened when they are needed."""

    def __init__(self) -> None:
        self._bundles: dict[str, tuple[Bundle, int, int]] = {}
        self._networks: dict[str, PlannedNetwork] = {}

    def add(self, bundle: Bundle, in_place_of: Bundle | None = None) -> None:
        """Know the plans of a bundle; those of another one, of as many stages, compute what its own do."""
        loaded = in_place_of or bundle
        for index, stage in enumerate(loaded.manifest.stages):
            for rank, engine in enumerate([each.engine for each in stage.ranks] or [stage.engine]):
                self._bundles[_digest((loaded.path / engine).read_bytes())] = bundle, index, rank

    def add_network(self, plan: bytes, network: PlannedNetwork) -> None:
        """Know a plan of no bundle."""
        self._networks[_digest(plan)] = network

    def network(self, plan: bytes) -> PlannedNetwork | None:
        """Return the network of a plan, None for an unknown one."""
        digest = _digest(plan)
        known = self._bundles.get(digest)
        return self._networks.get(digest) if known is None else _network(*known)


def _digest(plan: bytes) -> str:
    return hashlib.sha256(plan).hexdigest()


def _network(bundle: Bundle, index: int, rank: int) -> PlannedNetwork:
    manifest = bundle.manifest
    stage, layers = manifest.stages[index], bundle.layers(manifest.stages[index].name, rank)
    assert layers is not None, "a network with plugins: TensorRT-RTX has none"
    own, is_streamable = stage.networks[rank], manifest.config.build.weight_streaming
    return PlannedNetwork(
        layers,
        own.profiles,
        manifest.grid.stage_ranks if stage.ranks else 1,  # collectives stay inside a pipeline stage
        sum(own.totals.weight_bytes.values()),
        is_streamable,
        requires_user_memory=not is_streamable and not allocates(node.kind for node in layers.nodes),
        compute_capabilities=load_target(manifest.config.target).compute_capabilities
        or BACKENDS[manifest.backend.name].features.compute_capabilities,
        version=manifest.backend.version,
    )


def _executor(layers: LayerGraph, ranks: int, device: str) -> Executor:
    """Return an executor for shapes. device: torch's; on `meta`, only what follows from sizes has values."""
    return Executor(layers, Options(device=device, ranks=_NoOthers(ranks) if ranks > 1 else None))


def _shapes(
    executor: Executor,
    shapes: Shapes,
    on_tensor: Callable[[str, torch.Tensor], None] | None = None,
    device: str = "meta",
) -> dict[str, tuple[int, ...]]:
    inputs = {
        spec.name: torch.zeros(shapes[spec.name], dtype=getattr(torch, spec.dtype.torch), device=device)
        for spec in executor.inputs
    }
    return {name: tuple(value.shape) for name, value in executor.run(inputs, on_tensor=on_tensor).items()}
