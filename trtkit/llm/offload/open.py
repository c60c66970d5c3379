"""Open a bundle of pipeline stages to run them in turn on one device."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from trtkit.errors import RequestError
from trtkit.llm.execution.cache_size import page_tokens_of
from trtkit.llm.execution.single import Peers, open_rank
from trtkit.llm.offload.caches import DiskMemory, HostMemory, StageCaches
from trtkit.llm.offload.decoder import OffloadedDecoder, OffloadedStage
from trtkit.llm.offload.schedule import FEWEST_STAGES, BlockSchedule, usual_micro_batch

if TYPE_CHECKING:
    from trtkit.bundle.bundle import Bundle
    from trtkit.llm.execution.execution import RankExecution
    from trtkit.llm.execution.single import ExecutionOptions, OpenOptions

_OPTION = "offload"


@dataclass(frozen=True)
class _Slots:
    """Number of the model's sequences, of a micro-batch's, and of those whose caches are on the device at once."""

    total: int
    micro_batch: int
    on_device: int


def open_offloaded(bundle: Bundle, options: OpenOptions) -> OffloadedDecoder:
    """Open a bundle's stages; a stage's weights are loaded when its turn comes.

    Raises RequestError for bundles and options that cannot run this way, GenerationError if caches do not fit the disk.
    """
    place = options.how.offload
    assert place is not None
    check_offload(bundle, options.how)
    slots = _slots(options)
    stages: list[OffloadedStage] = []
    for rank in range(bundle.manifest.grid.ranks):
        execution = open_rank(bundle, replace(options, slots=slots.on_device), Peers(rank))
        execution.unload_weights()
        weight_bytes = sum(bundle.manifest.stages[-1].networks[rank].totals.weight_bytes.values())
        caches = _caches(execution, place, slots.total, stages[0].caches if stages else None)
        stages.append(OffloadedStage(execution, caches, weight_bytes))
    return OffloadedDecoder(stages, slots.total, slots.micro_batch, "the device" if place == "device" else place)


def check_offload(bundle: Bundle, how: ExecutionOptions) -> None:
    """Raise RequestError for a bundle or options whose stages cannot run in turn."""
    manifest, llm = bundle.manifest, bundle.manifest.config.llm
    grid, fix = manifest.grid, "leave it out"
    if grid.stage_ranks > 1 or grid.pipeline < FEWEST_STAGES:
        grid_text = f"{grid.pipeline} of {grid.stage_ranks} ranks" if grid.stage_ranks > 1 else str(grid.pipeline)
        what = f"stages run in turn if there are {FEWEST_STAGES} or more of one rank; the bundle has {grid_text}"
        raise RequestError(what, _OPTION, f"build with `--set parallel.pipeline={FEWEST_STAGES}` or more")
    if page_tokens_of([record.spec for record in manifest.stages[-1].networks[0].inputs]) is not None:
        what = "the caches of stages in turn are linear; the bundle's are in pages"
        raise RequestError(what, _OPTION, "build with `--set llm.kv=linear`")
    if llm is not None and llm.lora is not None:
        raise RequestError("stages in turn take no LoRA adapters", _OPTION, "merge the adapter at build: `source.lora`")
    if manifest.images is not None:
        raise RequestError("stages in turn take no images", _OPTION, fix)
    if how.weight_budget_gib is not None:
        raise RequestError("cannot be combined with `weight_budget_gib`", _OPTION, "choose one")
    if how.has_speculator:
        raise RequestError("stages in turn take no draft head", _OPTION, "set `speculate` to 0")
    if how.needs_all_logits:
        raise RequestError("stages in turn give the logits that the bundle was built for", _OPTION, fix)


def _slots(options: OpenOptions) -> _Slots:
    """Return how sequences are divided. Raises RequestError for an empty micro-batch or one larger than all slots."""
    total, chosen, place = options.slots, options.how.micro_batch, options.how.offload
    assert place is not None
    micro_batch = usual_micro_batch(place, total) if chosen is None else chosen
    if not 1 <= micro_batch <= total:
        what = f"{micro_batch} sequences are not a micro-batch of {total} slots"
        raise RequestError(what, "micro_batch", f"use 1 to {total}")
    buffers = BlockSchedule(FEWEST_STAGES, 1).buffers
    return _Slots(total, micro_batch, total if place == "device" else buffers * micro_batch)


def _caches(execution: RankExecution, place: str, slots: int, first: StageCaches | None) -> StageCaches:
    """Return a stage's caches, in the execution's own memory or elsewhere. Raises GenerationError for a full disk.

    first: the first stage's caches, whose buffers and stream for copies the other stages share.
    """
    own_cache = execution.cache
    if place == "device":
        return StageCaches(own_cache, own_cache)
    if first is not None:
        execution.share_cache(first.buffers)
    link = first.link if first is not None else None if own_cache.stream is None else own_cache.stream.sibling()
    memory = DiskMemory() if place == "disk" else HostMemory(own_cache.stream)
    return StageCaches(own_cache.elsewhere(slots, memory), own_cache, memory, link)
