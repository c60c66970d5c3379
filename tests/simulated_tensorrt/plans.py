"""Which network a plan holds: plans cannot be read here, so a bundle says it."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from trtkit.backends import load_backend
from trtkit.config.targets import load_target
from trtkit.engine.hybrids import open_hybrid
from trtkit.engine.plan_file import can_be_captured
from trtkit.engine.stages import bundle_stages
from trtkit.models.model import SPECULATOR
from trtkit.network.graph import Graph
from trtkit.network.onnx.parse import parse_onnx
from trtkit.reference import Executor, Options, constants_from_onnx, read_layers
from trtkit.resolve import resolve
from trtkit.runtime.decoder.network import written_head_network, written_network
from trtkit.runtime.stages import reference_stages

if TYPE_CHECKING:
    from collections.abc import Mapping

    from trtkit.backends import Backend
    from trtkit.bundle.bundle import Bundle
    from trtkit.network.profile import ResolvedProfile
    from trtkit.reference import Rank
    from trtkit.runtime.decoder.network import DecoderNetwork


@dataclass(frozen=True, eq=False)
class PlannedNetwork:
    """A plan's network. profiles: of its own inputs. owner: what must live as long as it.

    ranks: how many share it, each with a plan of its own. weight_bytes: that it holds. is_streamable: whether they may
    stay on the host. requires_user_memory: whether it was built with `BuilderFlag.REQUIRE_USER_ALLOCATION`.
    compute_capabilities: GPUs it was built for; of any that the library supports if empty.
    """

    backend: Backend
    definition: Any
    constants: Mapping[str, Any]
    profiles: tuple[ResolvedProfile, ...]
    owner: object
    ranks: int = 1
    weight_bytes: int = 0
    is_streamable: bool = False
    requires_user_memory: bool = False
    compute_capabilities: tuple[int, ...] = ()

    def executor(self, ranks: Rank) -> Executor:
        """Return what computes it, caches in place as engines update them. ranks: for its collectives."""
        options = Options(in_place_caches=True, ranks=ranks if self.ranks > 1 else None)
        return Executor(read_layers(self.backend, self.definition, self.constants), options)


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
        if known is None:
            return self._networks.get(digest)
        bundle, index, rank = known
        stage = bundle.manifest.stages[index]
        totals = stage.ranks[rank].totals if stage.ranks else stage.totals
        is_streamable, network = bundle.manifest.config.build.weight_streaming, _network(*known)
        return replace(
            network,
            weight_bytes=sum(totals.weight_bytes.values()),
            is_streamable=is_streamable,
            requires_user_memory=not is_streamable and can_be_captured(network.backend, network.definition),
            compute_capabilities=load_target(bundle.manifest.config.target).compute_capabilities,
        )


def _digest(plan: bytes) -> str:
    return hashlib.sha256(plan).hexdigest()


def _network(bundle: Bundle, index: int, rank: int) -> PlannedNetwork:
    manifest = bundle.manifest
    backend, profiles = load_backend(manifest.backend.name), manifest.stages[index].profiles
    if manifest.interface == "tokens":
        if index == len(manifest.stages) - 1:
            graph, stage = _graph(written_network(bundle, rank)), manifest.stages[index]
            profiles = stage.ranks[rank].profiles if stage.ranks else profiles
            ranks = manifest.grid.stage_ranks
            return PlannedNetwork(backend, graph.network, graph.constants, profiles, graph, ranks)
        if manifest.stages[index].name == SPECULATOR:
            graph = _graph(written_head_network(bundle))
            return PlannedNetwork(backend, graph.network, graph.constants, profiles, graph)
        onnx = bundle.onnx_path(manifest.stages[index].name)
        parsed = parse_onnx(backend, onnx, "ERROR")
        return PlannedNetwork(backend, parsed.definition, constants_from_onnx(onnx), profiles, parsed)
    stages = bundle_stages(bundle)
    opened = None if all(stage.writer == "parser" for stage in stages) else open_hybrid(resolve(manifest.config))
    if opened is None:
        onnx = bundle.onnx_path(manifest.stages[index].name)
        parsed = parse_onnx(backend, onnx, "ERROR")
        return PlannedNetwork(backend, parsed.definition, constants_from_onnx(onnx), profiles, parsed)
    running: Any = reference_stages(backend, stages, opened).stages[index]
    graph = running.layers.owner.graph
    onnx = stages[index].onnx
    constants = {**({} if onnx is None else constants_from_onnx(onnx.path)), **graph.constants}
    return PlannedNetwork(backend, graph.network, constants, profiles, running)


def _graph(network: DecoderNetwork) -> Graph:
    graph = network.layers.owner
    assert isinstance(graph, Graph)
    return graph
