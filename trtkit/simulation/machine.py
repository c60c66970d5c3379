"""A GPU as replicas need it: step times from a model's counts, and how many sequences or pages its memory holds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from trtkit.errors import SimulationError
from trtkit.planning.llm import footprint_of
from trtkit.planning.paged import ALL_COPIED
from trtkit.simulation.times import RooflineTimes

if TYPE_CHECKING:
    from trtkit.planning.gpus import PlannedGpu
    from trtkit.planning.question import Question

Caches = Literal["linear", "paged", "paged-in-place"]
"""Slots; pages that a step copies next to each other, as trtkit's networks do; pages that it reads where they lie."""
_MOST_SLOTS = 256
"""Sequences at once where pages would hold more."""


@dataclass(frozen=True)
class MachineOptions:
    """efficiency: the share of a GPU's published rates that steps reach. overhead_s: of each call, besides.

    host_bytes_per_s: of copies between device and host. slots: sequences at once; as many as fit if None.
    """

    efficiency: float = 1.0
    overhead_s: float = 0.0
    host_bytes_per_s: float = 50e9
    slots: int | None = None


@dataclass(frozen=True)
class Machine:
    """A GPU that runs a model. cache_tokens: that its memory holds, all else subtracted. slots: sequences at once."""

    times: RooflineTimes
    slots: int
    slot_tokens: int
    cache_tokens: int
    token_bytes: int


def machine_of(question: Question, gpu: PlannedGpu, options: MachineOptions, caches: Caches) -> Machine:
    """Return a GPU that runs a planned model on its own. Raises SimulationError if that does not fit."""
    model, counts, work, is_paged = question.model, question.counts, question.work, caches != "linear"
    footprint = footprint_of(model, counts, work.chunk)
    fitting = footprint.largest_batch(work.slot_length, gpu.memory_bytes)
    if not all(gpu.takes(name) for name in (model.dtype.name, *model.types)):
        raise SimulationError(f"{gpu.name} does not take {model.dtype.name}", "--gpu", "choose another GPU")
    if not fitting:
        least = footprint.need(1, work.slot_length).total
        what = f"{model.name} needs {least / 1e9:.1f} GB; {gpu.name} has {gpu.memory_bytes / 1e9:.1f} GB"
        raise SimulationError(what, "--gpu", "choose a larger GPU, a quantized model or a smaller --max-length")
    slots = options.slots or (min(4 * fitting, _MOST_SLOTS) if is_paged else fitting)
    if slots > fitting and not is_paged:
        what = f"{slots} slots of {work.slot_length} tokens do not fit {gpu.name}; {fitting} do"
        raise SimulationError(what, "--slots", "use fewer, or --kv paged")
    need = footprint.need(slots, work.slot_length)
    free = gpu.memory_bytes - (need.total - need.kv_cache) - 2 * model.state_bytes * slots
    token_bytes = model.kv_bytes_per_token
    cache_tokens = free // token_bytes if token_bytes else slots * work.slot_length
    if cache_tokens < work.slot_length:
        what = f"{gpu.name} has room for {max(0, cache_tokens)} cached tokens with {slots} sequences at once"
        raise SimulationError(what, "--slots", "use fewer")
    copy_s = token_bytes / options.host_bytes_per_s
    counts = counts.with_gathered_pages(ALL_COPIED) if caches == "paged" else counts
    times = RooflineTimes(counts, gpu, options.efficiency, options.overhead_s, copy_s)
    return Machine(times, slots, work.slot_length, cache_tokens, token_bytes)
