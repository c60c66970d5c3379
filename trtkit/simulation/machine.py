"""GPUs as replicas need them: step times from a model's counts, and the sequences or pages that fit their memory."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Literal

from trtkit.errors import SimulationError
from trtkit.models.parallel import SINGLE
from trtkit.planning.grids import footprint_on, link_seconds, own_share, passed_s
from trtkit.planning.paged import page_copies
from trtkit.planning.roofline import floor, mixed_floor
from trtkit.simulation.replica_options import ReadWindows

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from trtkit.models.parallel import Grid
    from trtkit.planning.counts import NetworkCounts, Point
    from trtkit.planning.gpus import PlannedGpu
    from trtkit.planning.question import PlanningQuestion
    from trtkit.planning.roofline import Roof
    from trtkit.planning.shares import GridShare
    from trtkit.simulation.times import Line, Piece

Caches = Literal["linear", "paged", "paged-in-place"]
"""Slots; pages that a step gathers into contiguous memory, as trtkit's networks do; pages that it reads in place."""
Reads = Literal["tokens", "windows", "slots"]
"""What attention reads: exactly the tokens in use; a power of two of them, which a step copies; or whole slots."""
_READS = 3  # passes over a copied token: it is read, written and read again
_MOST_SLOTS = 256
"""Limit on sequences if pages would hold more."""


def no_links(tokens: int, rows: int) -> float:  # noqa: ARG001
    """Return 0: a single GPU exchanges nothing."""
    return 0.0


@dataclass(frozen=True)
class RooflineTimes:
    """Roofline times of a network on its GPUs, divided by the share of their rates that steps are assumed to reach.

    counts: of one GPU, as if it computed the layers of all pipeline `stages`. overhead_s: additional time per call.
    copy_s_per_token: see StepTimes. slot_tokens: tokens per slot that attention always reads; None if it reads only
    those in use. links_s: returns the time that a step of new tokens and logit rows spends on exchanges.
    """

    counts: NetworkCounts
    gpu: Roof
    efficiency: float = 1.0
    overhead_s: float = 0.0
    copy_s_per_token: float = 0.0
    stages: int = 1
    slot_tokens: int | None = None
    links_s: Callable[[int, int], float] = no_links
    _lines: dict[int, tuple[Line, Line]] = field(default_factory=dict, repr=False, compare=False)
    _prefill: dict[tuple[int, int, int], float] = field(default_factory=dict, repr=False, compare=False)

    def decode_lines(self, batch: int, cached: int) -> tuple[Line, Line]:  # noqa: ARG002
        """Return the lines of memory and of compute; see StepTimes.

        Both are exact, since counts are linear in the length.
        """
        lines = self._lines.get(batch)
        if lines is None:
            low, high = (floor(self.counts, (batch, 1, self._read(length)), self.gpu) for length in (1, 1025))
            lines = self._lines[batch] = (
                self._line(batch, low.memory_s, high.memory_s),
                self._line(batch, low.compute_s or 0.0, high.compute_s or 0.0),
            )
        return lines

    def prefill_s(self, rows: int, tokens: int, length: int) -> float:
        """Return the seconds of a prompt call; see StepTimes."""
        call = rows, tokens, self._read(length)
        if call not in self._prefill:
            computed_s = passed_s(floor(self.counts, call, self.gpu), self.stages, rows * tokens)
            links_s = self.links_s(rows * tokens, rows)
            self._prefill[call] = (computed_s + links_s) / self.efficiency + self.overhead_s
        return self._prefill[call]

    def mixed_s(self, rows: int, cached: int, pieces: Sequence[Piece], idle: int = 0) -> float:
        """Return the seconds of a packed call, whose rows and chunks read the weights once; see StepTimes."""
        decoding = [(count, new, self._read(length)) for count, new, length in _decoding(rows, cached)]
        reading = [(1, new, self._read(length)) for new, length in pieces]
        parts = [*decoding, *reading, *([(1, idle, 0)] if idle else [])]
        tokens = sum(batch * new for batch, new, _ in parts)
        links_s, least = self.links_s(tokens, rows + len(pieces)), mixed_floor(self.counts, parts, self.gpu)
        computed_s = passed_s(least, self.stages, tokens) if pieces else least.seconds
        return (computed_s + links_s) / self.efficiency + self.overhead_s

    def _read(self, tokens: int) -> int:
        """Return how many tokens of a slot attention reads if `tokens` are in use."""
        return tokens if self.slot_tokens is None else self.slot_tokens

    def _line(self, batch: int, at_1: float, at_1025: float) -> Line:
        """Return the line through two steps, of 1 and of 1,025 cached tokens per row, including the new one."""
        slope = (at_1025 - at_1) / 1024 / batch / self.efficiency
        return (at_1 + self.links_s(batch, batch)) / self.efficiency + self.overhead_s, slope


def _decoding(rows: int, cached: int) -> list[Point]:
    """Return (B, S, T) of decoding rows, as even as possible. cached: tokens of all rows, before their new ones."""
    shortest, longer = divmod(cached + rows, rows) if rows else (0, 0)
    return [(count, 1, shortest + more) for count, more in ((rows - longer, 0), (longer, 1)) if count]


@dataclass(frozen=True)
class MachineOptions:
    """efficiency: the share of a GPU's published rates that steps reach. overhead_s: additional time per call.

    host_bytes_per_s: of copies between device and host. slots: concurrent sequences; as many as fit if None.
    page_tokens: tokens per page. reads: what attention reads of caches.
    """

    efficiency: float = 1.0
    overhead_s: float = 0.0
    host_bytes_per_s: float = 50e9
    slots: int | None = None
    page_tokens: int = 0
    reads: Reads = "tokens"


@dataclass(frozen=True)
class Machine:
    """GPUs that run a model. slots: concurrent sequences. token_bytes: of a token's cache on all GPUs.

    cache_tokens: tokens that fit into a GPU's memory next to everything else, including copies of pages. windows: what
    steps copy before they read it; None if they copy nothing, or exactly the tokens in use.
    """

    times: RooflineTimes
    slots: int
    slot_tokens: int
    cache_tokens: int
    token_bytes: int
    gpus: int
    windows: ReadWindows | None = None


def machine_of(question: PlanningQuestion, gpu: PlannedGpu, options: MachineOptions, caches: Caches) -> Machine:
    """Return the GPUs that run a planned model.

    Those of its grid. Raises SimulationError if the model does not fit them.
    """
    model, work, is_paged = question.model, question.work, caches != "linear"
    check_grid_is_simulated(question.grid, gpu)
    if not all(gpu.takes(name) for name in (model.dtype.name, *model.types)):
        raise SimulationError(f"{gpu.name} does not take {model.dtype.name}", "--gpu", "choose another GPU")
    share = own_share(question)
    if caches == "paged" or (caches == "linear" and options.reads == "windows"):
        share = replace(share, counts=_copying(share.counts, question, caches))
    footprint = footprint_on(question, share)
    fitting = footprint.largest_batch(work.slot_length, gpu.memory_bytes)
    if not fitting:
        least = footprint.need(1, work.slot_length).total
        on_each = "" if question.grid == SINGLE else " on each GPU"
        what = f"{model.name} needs {least / 1e9:.1f} GB{on_each}; {gpu.name} has {gpu.memory_bytes / 1e9:.1f} GB"
        fix = "choose a larger GPU, a quantized model, a smaller --max-length, or several GPUs by `parallel`"
        raise SimulationError(what, "--gpu", fix)
    slots = options.slots or (min(4 * fitting, _MOST_SLOTS) if is_paged else fitting)
    if slots > fitting and not is_paged:
        what = f"{slots} slots of {work.slot_length} tokens do not fit {gpu.name}; {fitting} do"
        raise SimulationError(what, "--slots", "use fewer, or --kv paged")
    need = footprint.need(slots, work.slot_length)
    free = gpu.memory_bytes - (need.total - need.kv_cache) - footprint.states(slots)
    token_bytes = share.kv_per_token
    cache_tokens = free // token_bytes if token_bytes else slots * work.slot_length
    if cache_tokens < work.slot_length:
        what = f"{gpu.name} has room for {max(0, cache_tokens)} cached tokens with {slots} sequences at once"
        raise SimulationError(what, "--slots", "use fewer")
    times = RooflineTimes(
        share.counts,
        gpu,
        options.efficiency,
        options.overhead_s,
        token_bytes / options.host_bytes_per_s,  # all ranks copy at the same time
        share.grid.pipeline,
        work.slot_length if options.reads == "slots" else None,
        no_links if question.grid == SINGLE else partial(_links_s, question, gpu, share),
    )
    windows = None
    if options.reads == "windows":  # recurrent states are in slots, whose rows share a call
        has_groups = is_paged and not model.state_bytes
        call_tokens = footprint.weights // (_READS * token_bytes) if has_groups else None
        windows = ReadWindows(work.slot_length, options.page_tokens if is_paged else 0, call_tokens)
    return Machine(times, slots, work.slot_length, cache_tokens, model.kv_bytes_per_token, question.grid.ranks, windows)


def _copying(counts: NetworkCounts, question: PlanningQuestion, caches: Caches) -> NetworkCounts:
    """Return the counts of a network that copies pages, or windows of slots, before it reads them."""
    copies = page_copies(question.spec)
    return counts.with_gathered_pages(copies) if caches == "paged" else counts.with_copied_windows(copies)


def check_grid_is_simulated(grid: Grid, gpu: PlannedGpu) -> None:
    """Raise SimulationError for a grid whose steps cannot be timed."""
    if grid.expert > 1:
        what = "expert parallelism is not simulated"
        raise SimulationError(what, "parallel.expert", "use parallel.tensor and parallel.pipeline")
    if grid != SINGLE and not gpu.link:
        what = f"the link between several {gpu.name} is not known"
        raise SimulationError(what, "parallel", "choose a GPU whose link `trtkit plan --list-gpus` shows")


def _links_s(question: PlanningQuestion, gpu: PlannedGpu, share: GridShare, tokens: int, rows: int) -> float:
    """Return the time that links take in a step of `tokens` new tokens and `rows` logit rows."""
    return link_seconds(question, gpu, share, tokens, rows)[0]
