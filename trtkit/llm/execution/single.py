"""Open the network of one rank: on TensorRT if a GPU is present, else on the reference executor."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from trtkit.backends import load_backend
from trtkit.builder.decoders import llm_options, most_pages
from trtkit.errors import GenerationError, RequestError
from trtkit.llm.execution.cache_size import bytes_of_page, page_tokens_of, with_speculator
from trtkit.llm.execution.network import bundle_network, bundle_speculator_network
from trtkit.llm.execution.pool_size import CacheSize, PoolSize
from trtkit.llm.execution.reference import ReferenceDecoder
from trtkit.models.model import SPECULATOR
from trtkit.models.parallel import rank_spec
from trtkit.models.rank_weights import RankWeights
from trtkit.models.spec_file import read_spec
from trtkit.runtime import device as devices
from trtkit.runtime.weight_budget import weight_budget_bytes
from trtkit.serving_options import CachePlace, Runtime  # noqa: TC001  # ranks read OpenOptions from JSON by its types

if TYPE_CHECKING:
    from collections.abc import Callable

    from trtkit.bundle.bundle import Bundle
    from trtkit.llm.execution.engine import EngineDecoder
    from trtkit.llm.execution.execution import RankExecution
    from trtkit.models.rank_weights import MatrixShare
    from trtkit.network.input_spec import InputSpec
    from trtkit.reference import Rank
    from trtkit.runtime.device import Device

_FEWEST_PAGES = 2  # one of them takes padding


@dataclass(frozen=True)
class ExecutionOptions:
    """How a decoder runs. has_cuda_graphs: whether decode steps are captured and replayed.

    needs_all_logits: open the reference executor if the engine gives the last token's logits only.
    cache_gib: a rank's memory for paged caches; as much as linear ones would take if None.
    weight_budget_gib: GPU memory for an engine's weights, of which the others stay on the host; all if None.
    has_speculator: whether to open the draft head, too.
    resident_tokens: steps for which the reference executor keeps rows of active neurons; all are mapped if None.
    offload: where caches stay if pipeline stages run in turn on one device; None if each has a process and a device.
    micro_batch: sequences that a stage then computes together.
    """

    has_cuda_graphs: bool = True
    needs_all_logits: bool = False
    cache_gib: float | None = None
    weight_budget_gib: float | None = None
    has_speculator: bool = False
    resident_tokens: int | None = None
    offload: CachePlace | None = None
    micro_batch: int | None = None


DEFAULT_EXECUTION = ExecutionOptions()


@dataclass(frozen=True)
class OpenOptions:
    """How to open a decoder. slots: sequences at once. parts: in how many parts pipeline stages run a call; None for
    what suits the call.
    """

    runtime: Runtime
    slots: int
    how: ExecutionOptions = DEFAULT_EXECUTION
    parts: int | None = None


@dataclass(frozen=True, eq=False)
class Peers:
    """A rank among others. gpu: its index on this machine. members: the ranks of its stage; None if it is alone."""

    rank: int
    gpu: int | None = None
    members: Rank | None = None


ALONE = Peers(0)


def open_rank(bundle: Bundle, options: OpenOptions, peers: Peers = ALONE) -> RankExecution:
    """Open a bundle's network, or that of one rank.

    Raises GenerationError for TensorRT without a GPU, BundleError if the bundle's files or its source have changed.
    """
    needs_reference = options.how.needs_all_logits and llm_options(bundle.manifest.config).logits != "all"
    if needs_reference and options.runtime == "tensorrt":
        what = "the engine outputs logits of the last token only"
        fix = "build with `--set llm.logits=all`, or use `--runtime reference`"
        raise GenerationError(what, str(bundle.path), fix)
    weight_budget_bytes(bundle, options.how.weight_budget_gib)
    device = None if needs_reference else engine_device(options.runtime, peers.gpu)
    execution: RankExecution
    _check_resident(bundle, options.how, has_engine=device is not None)
    if device is not None:
        execution = _open_engine(bundle, options, peers, device)
    else:
        if not needs_reference:
            bundle.check_network(reads_layers=True)
        network = bundle_network(bundle, peers.rank, has_all_logits=needs_reference)
        pool = _pool(bundle, options, peers.rank)
        is_fast = options.runtime == "auto"
        execution = ReferenceDecoder(
            network,
            options.slots,
            ranks=peers.members,
            pool=pool,
            is_fast=is_fast,
            kept_calls=options.how.resident_tokens,
        )
        if options.how.has_speculator:
            pool = PoolSize(model=execution.cache)
            head = bundle_speculator_network(bundle)
            execution.speculator = ReferenceDecoder(head, options.slots, pool=pool, is_fast=is_fast)
    if execution.adapters is not None and bundle.manifest.grid.ranks > 1:
        execution.adapters.share_of = _shares(bundle, peers.rank)
    return execution


def _check_resident(bundle: Bundle, how: ExecutionOptions, *, has_engine: bool) -> None:
    """Raise RequestError if rows of neurons are to be read from files but the network has none."""
    llm = bundle.manifest.config.llm
    if how.resident_tokens is None:
        return
    if llm is None or llm.sparse_ffn is None:
        what, fix = "the bundle's steps read all neurons", "build with `llm.sparse_ffn`, or leave it out"
        raise RequestError(what, "resident_tokens", fix)
    if has_engine:
        fix = "leave it out, or use `--runtime reference`"
        raise RequestError("an engine on a GPU does not read rows from files", "resident_tokens", fix)


def _shares(bundle: Bundle, rank: int) -> Callable[[str], MatrixShare]:
    """Return a function that gives a rank's share of a layer's matrix."""
    spec = read_spec(bundle.path)
    return RankWeights(spec, rank_spec(spec, bundle.manifest.grid, rank), {}).share_of


def _open_engine(bundle: Bundle, options: OpenOptions, peers: Peers, device: Device) -> EngineDecoder:
    """Open a rank's engine. Steps with collectives are not captured: no GPU has shown that this works."""
    from trtkit.llm.execution.engine import EngineDecoder
    from trtkit.llm.execution.packed_engine import engine_class
    from trtkit.llm.execution.plan import DecoderPlan

    devices.check_device(device, bundle.manifest)
    bundle.check_files()
    backend, plan = load_backend(bundle.manifest.backend.name), DecoderPlan.of(bundle, peers.rank)
    size = CacheSize(options.slots, _pool(bundle, options, peers.rank))
    in_turn = options.how.offload is not None
    has_cuda_graphs = options.how.has_cuda_graphs and peers.members is None and not in_turn
    engine = engine_class(plan)(backend, plan, size, device, has_cuda_graphs=has_cuda_graphs, defers_weights=in_turn)
    if options.how.has_speculator:
        plan, size = DecoderPlan.of(bundle, name=SPECULATOR), CacheSize(options.slots, PoolSize(model=engine.cache))
        engine.speculator = EngineDecoder(backend, plan, size, device, has_cuda_graphs=has_cuda_graphs)
    budget_bytes = weight_budget_bytes(bundle, options.how.weight_budget_gib)
    if budget_bytes is not None:
        engine.stream_weights(budget_bytes)
    if peers.members is not None:
        engine.connect(device.connect(peers.members))
    return engine


def _pool(bundle: Bundle, options: OpenOptions, rank: int) -> PoolSize:
    stage = bundle.manifest.stages[-1]
    weight_bytes = stage.ranks[rank].weight_bytes if stage.ranks else sum(stage.totals.weight_bytes.values())
    return PoolSize(_pages(bundle, options), weight_bytes, tuple(_speculator_inputs(bundle, options)))


def _speculator_inputs(bundle: Bundle, options: OpenOptions) -> list[InputSpec]:
    """Return the inputs of the draft head's network; empty if it is not opened."""
    return [record.spec for record in bundle.manifest.stage(SPECULATOR).inputs] if options.how.has_speculator else []


def _pages(bundle: Bundle, options: OpenOptions) -> int | None:
    """Return how many pages fit the memory for caches, the same number on every rank; None without a limit.

    Raises RequestError if the caches are linear, or for less memory than two pages take.
    """
    gib = options.how.cache_gib
    if gib is None:
        return None
    stage = bundle.manifest.stages[-1]
    ranks = [[record.spec for record in network.inputs] for network in stage.networks]
    ranks[0] = with_speculator(ranks[0], _speculator_inputs(bundle, options))
    if page_tokens_of(ranks[0]) is None:
        fix = "build with `--set llm.kv=paged`, or limit the slots"
        raise RequestError("the engine's caches are linear: each slot has its own memory", "cache_gib", fix)
    page_bytes = max(bytes_of_page(specs) for specs in ranks)
    pages = min(int(gib * 2**30) // page_bytes, *(most_pages(specs) for specs in ranks))
    if pages < _FEWEST_PAGES:
        what = f"{gib:g} GiB are too few for {_FEWEST_PAGES} pages of {page_bytes} bytes"
        raise RequestError(what, "cache_gib", "give the caches more memory")
    return pages


def engine_device(runtime: Runtime, gpu: int | None = None) -> Device | None:
    """Return the device on which TensorRT runs the engine, GPU `gpu` if given; None for the reference executor.

    Raises GenerationError if TensorRT is requested and there is no GPU.
    """
    device = None if runtime == "reference" else devices.find_device(gpu)
    if runtime == "tensorrt" and device is None:
        raise GenerationError("no GPU to run the engine", fix="use `--runtime reference`, which needs none")
    return device


def checked_slots(bundle: Bundle, slots: int | None) -> int:
    """Return the number of slots to open. Raises RequestError for more than the engine has."""
    limit = llm_options(bundle.manifest.config).max_batch_size
    if slots is None:
        return limit
    if not 1 <= slots <= limit:
        fix = f"use 1 to {limit}, or build with a larger `llm.max_batch_size`"
        raise RequestError(f"{slots} slots requested; the engine takes 1 to {limit}", "slots", fix)
    return slots
