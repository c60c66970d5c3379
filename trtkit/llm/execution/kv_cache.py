"""Linear caches and recurrent states: their memory, and every operation on it between calls."""

from __future__ import annotations

import copy
import math
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import torch

from trtkit.errors import ExecutionError
from trtkit.llm.cache import PageCopies
from trtkit.llm.cache.transfers import CopyPages, CopyTokens
from trtkit.llm.execution.cache_size import page_tokens_of
from trtkit.llm.execution.cached_places import codes, copy_places
from trtkit.llm.execution.host_blocks import LocalBlocks
from trtkit.llm.execution.saved import CacheArray, CacheForm, SavedSequence, check_saved, check_tokens
from trtkit.models.context import ALL_POSITIONS, context_of
from trtkit.models.share import WHOLE
from trtkit.runtime.device import host_buffer, staged

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from trtkit.llm.cache import PageTables
    from trtkit.llm.cache.transfers import Copy
    from trtkit.llm.execution.cached_places import NewTokens, Place
    from trtkit.llm.execution.call import Call
    from trtkit.llm.sequences import Ints
    from trtkit.models.share import Share
    from trtkit.network.input_spec import InputSpec
    from trtkit.runtime.device import Stream

    Memory = Callable[[Sequence[int], torch.dtype], torch.Tensor]


class KvCache:
    """Linear KV caches and recurrent states: each sequence has a slot of its own, allocated once and never moved.

    A slot's keys and values are valid for any prefix of its tokens. Its states are valid only for exactly the
    `positions` [slots] tokens that they have read. An encoder's output for a slot's request stays until the next
    request.

    specs: the network's inputs, among them the caches and states. of_prompts: inputs of a packed network through which
    rows of prompts read the same caches. stream: of a device; operations on the caches run on it in order. None for the
    caller's own memory and time. max_length: T, tokens per slot. context: the share of positions that this rank holds,
    if several ranks share them. model: digest of the model that computes the caches; saved sequences of other models
    are refused. follows: whether these are a draft head's caches, see `part`. memory: allocates zeroed memory of a
    shape and type, instead of the stream or the caller.
    """

    def __init__(
        self,
        specs: Iterable[InputSpec],
        slots: int,
        max_length: int,
        dtype_of: Callable[[InputSpec], torch.dtype],
        stream: Stream | None = None,
        context: Share = WHOLE,
        memory: Memory | None = None,
    ) -> None:
        specs = list(specs)
        kept = [spec for spec in specs if spec.is_kept]
        self.specs, self.states, self.encoded = _by_feeder(kept)
        self.of_prompts = [spec for spec in specs if spec.feeder == "slots"]
        self.positions = np.zeros(slots, np.int64)
        self.slots, self.max_length = slots, max_length
        self.model = ""
        self.follows = False
        self.stream = stream
        self._stream, self._empty = stream, memory or (_zeros if stream is None else stream.empty)
        self.pages: PageTables | None = None
        self.page_tokens = page_tokens_of(kept, context)
        self.context = context_of(context, self.page_tokens)
        self._arrays = {spec.name: self._empty(self._shape(spec), dtype_of(spec)) for spec in kept}
        self._marked: dict[str, torch.Tensor] = {}
        self._marked_positions = np.zeros(slots, np.int64)
        self._state_names = {spec.name for spec in (*self.states, *self.encoded)}  # inputs without an axis of tokens
        if stream is not None:
            for array in self._arrays.values():
                self._run(array.zero_)

    def part(self, specs: Iterable[InputSpec], *, follows: bool = False) -> KvCache:
        """Return the caches of some inputs, in the same memory.

        follows: for a draft head, whose calls do not define the slots' positions.
        """
        specs = list(specs)
        part, kept = copy.copy(self), [spec for spec in specs if spec.is_kept]
        part.follows = follows
        part.of_prompts = [spec for spec in specs if spec.feeder == "slots"]
        part.specs, part.states, part.encoded = _by_feeder(kept)
        part._arrays = {spec.name: self._arrays[spec.name] for spec in kept}
        return part

    @property
    def has_slot_memory(self) -> bool:
        """Whether a slot holds more of its sequence than keys and values."""
        return bool(self._state_names)

    @property
    def needs_neighbors(self) -> bool:
        """Whether the rows of a group must be consecutive slots: their memory is read as one slice."""
        return self.has_slot_memory or (self.page_tokens is None and bool(self.specs))

    @property
    def has_states(self) -> bool:
        """Whether layers keep recurrent states."""
        return bool(self.states)

    @property
    def block_multiple(self) -> int:
        """Divisor of the tokens of blocks saved on their own: every rank holds an equal part of a block."""
        return self.context.multiple

    def elsewhere(self, slots: int, memory: Memory) -> KvCache:
        """Return caches of the same inputs for `slots`, in memory outside this one's stream."""
        kept = [*self.specs, *self.states, *self.encoded]
        types = {name: array.dtype for name, array in self._arrays.items()}
        return KvCache(kept, slots, self.max_length, lambda spec: types[spec.name], memory=memory)

    def share(self, other: KvCache) -> None:
        """Share the memory of other caches, array by array in order, as far as shapes and types match."""
        for (name, array), shared in zip(list(self._arrays.items()), other._arrays.values(), strict=False):
            if (array.shape, array.dtype) == (shared.shape, shared.dtype):
                self._arrays[name] = shared

    def copy_rows(
        self, source: KvCache, rows: tuple[slice, slice], tokens: slice, run: Callable[[Callable[[], object]], object]
    ) -> int:
        """Copy consecutive slots of another cache: states, and positions `tokens` of keys and values; return bytes.

        rows: the other's slots, and this one's. run: carries out each copy, or enqueues it on a stream.
        """
        copied = 0
        for name, array in self._arrays.items():
            target, values = array[rows[1]], source._arrays[name][rows[0]]
            if name not in self._state_names:
                target, values = target[:, :, tokens], values[:, :, tokens]
            run(partial(target.copy_, values, non_blocking=True))
            copied += target.nbytes
        self.positions[rows[1]] = source.positions[rows[0]]
        return copied

    def view(self, rows: slice) -> dict[str, torch.Tensor]:
        """Return the caches [R, K, T, H] and states [R, ...] of consecutive slots, by input name."""
        return {name: array[rows] for name, array in self._arrays.items()}

    def view_of_prompts(self, rows: slice) -> dict[str, torch.Tensor]:
        """Return what consecutive slots that read prompts in a packed call read, by input name."""
        return {spec.name: self._arrays[spec.kept_as][rows] for spec in self.of_prompts}

    def prepare(self, call: Call) -> Call:
        """Return a call with the location of its rows' tokens; in linear caches, the slots are the location."""
        return call

    def assign(self, call: Call) -> Call:
        """Return what `prepare` does, but leave page copies to the ranks that run the call."""
        return call

    def make_room(self, slot: int, tokens: int) -> None:
        """Allocate an empty slot's memory for tokens; a linear slot has it already."""

    def follow(self) -> None:
        """Let another rank decide which memory a slot has."""

    def tell(self, slot: int, pages: Sequence[int]) -> None:
        """Record the pages that hold a slot's tokens; they are allocated elsewhere."""

    def set_pages(self, changes: Ints) -> None:
        """Apply changes of page tables: slots, indices in their rows, and pages, [N, 3]."""

    def copy_pages(self, copies: PageCopies) -> None:
        """Copy pages in all layers."""

    def advance(self, call: Call) -> None:
        """Advance the states' positions by a call's tokens. Raises ExecutionError if a row skips or repeats tokens."""
        if self.follows:
            return
        slots, starts, counts = call.slots, call.starts, call.counts
        held = self.positions[slots]
        is_wrong = (counts > 0) & (starts > 0) & (starts != held)
        if self.states and is_wrong.any():
            row = int(is_wrong.argmax())
            raise _misplaced(int(slots[row]), int(held[row]), int(starts[row]))
        self.positions[slots] = np.where((counts > 0) | (starts == 0), starts + counts, held)

    def keep(self, rows: slice, states: Mapping[str, torch.Tensor]) -> None:
        """Replace the states of consecutive slots: [R, ...] by input name."""
        for name, values in states.items():
            self._run(partial(self._arrays[name][rows].copy_, values))

    def mark(self, rows: slice) -> None:
        """Save the states of consecutive slots, for `rewind`; the first call allocates memory for all slots."""
        for spec in self.states:
            array = self._arrays[spec.name]
            if spec.name not in self._marked:
                self._marked[spec.name] = self._empty(tuple(array.shape), array.dtype)
            self._run(partial(self._marked[spec.name][rows].copy_, array[rows]))
        self._marked_positions[rows] = self.positions[rows]

    def rewind(self, slots: Sequence[int]) -> None:
        """Restore the states of slots to those saved by `mark`."""
        for name, marked in self._marked.items():
            for slot in slots:
                self._run(partial(self._arrays[name][slot].copy_, marked[slot]))
        self.positions[list(slots)] = self._marked_positions[list(slots)]

    def begin(self, call: Call) -> None:
        """Set the encoder's output for the slots of requests that start with a call."""
        for row, soft in call.soft_rows():
            if soft.encoded and call.starts[row] == 0 and call.counts[row] > 0:
                self.fill(int(call.slots[row]), soft.encoded)

    def fill(self, slot: int, encoded: Mapping[str, torch.Tensor]) -> None:
        """Set the encoder's output for a slot's request: [K, length, H] by input name."""
        for name, values in encoded.items():
            self._run(partial(self._arrays[name][slot].copy_, values))

    def append(self, tokens: NewTokens, new: Mapping[str, torch.Tensor]) -> None:
        """Write new keys and values [R, K, S, H]. All indices are tensors, so that a CUDA graph can hold this."""
        if not new:
            return
        rows, positions = self._places(tokens, next(iter(new.values())).shape[2])  # the same in all layers
        for name, values in new.items():
            heads = torch.arange(values.shape[1], device=rows.device)[None, :, None]
            array = self._arrays[name]
            codes(array)[rows[:, None], heads, positions[:, None]] = codes(values.to(array.dtype))

    def copy(self, source: int, target: int, tokens: slice) -> None:
        """Copy cached tokens of slot `source` to slot `target`, and its states.

        Raises ExecutionError if the states have read a different number of tokens.
        """
        self._check_position(source, tokens.indices(self.max_length)[1])
        self._copy_tokens(source, target, tokens)
        for name in self._state_names:
            array = self._arrays[name]
            self._run(partial(array[target].copy_, array[source]))
        self.positions[target] = self.positions[source]

    def carry_out(self, copies: Sequence[Copy]) -> None:
        """Carry out a batch's copies within the caches, in order."""
        for transfer in copies:
            match transfer:
                case CopyTokens(source, target, start, stop):
                    self.copy(source, target, slice(start, stop))
                case CopyPages(sources, targets):
                    self.copy_pages(PageCopies(list(sources), list(targets)))

    def move(self, slots: Ints, sources: Ints, targets: Ints) -> None:
        """Copy one cached token within each slot: slots [R], source and target positions [R]."""
        arrays = [codes(self._arrays[spec.name]) for spec in self.specs]
        self._run(partial(copy_places, arrays, *(self._place_of(slots, positions) for positions in (sources, targets))))

    def form(self, tokens: int) -> CacheForm:
        """Return the layout of a saved sequence of `tokens` tokens."""
        arrays = []
        for name, array in self._arrays.items():
            is_state, dtype = name in self._state_names, str(array.dtype).removeprefix("torch.")
            heads = array[0].numel() // array.shape[-1] if is_state else array.shape[1]
            context = ALL_POSITIONS if is_state else self.context
            arrays.append(CacheArray(name, dtype, heads, array.shape[-1], is_state, context))
        return CacheForm(self.model, tokens, tuple(arrays))

    def save(self, slot: int, count: int) -> SavedSequence:
        """Copy the first `count` tokens of a slot to the host."""
        check_tokens(count, self.max_length)
        self._check_position(slot, count)
        form = self.form(count)
        saved = SavedSequence(form, host_buffer(form.size_bytes, self._device))
        form.clear_gaps(saved.data)
        for name, view in form.views(saved.data).items():
            self._run(lambda name=name, view=view: self._save(name, slot, count, view))  # type: ignore[misc]
        if self._stream is not None:
            self._stream.synchronize()
        return saved

    def _save(self, name: str, slot: int, count: int, view: torch.Tensor) -> None:
        view.copy_(self._part(name, slot, count).reshape(view.shape), non_blocking=True)

    def load(self, slot: int, saved: SavedSequence) -> None:
        """Load a saved sequence into a slot. Raises ExecutionError for what `check` refuses."""
        self.check(saved)
        self.make_room(slot, saved.tokens)
        for name, view in saved.form.views(staged(saved.data, self._device)).items():
            if name in self._state_names:
                array = self._arrays[name][slot]
                self._run(partial(array.copy_, view.reshape(array.shape), non_blocking=True))
            else:
                self._write(name, slot, view)
        self.positions[slot] = saved.tokens

    def blocks(self, tokens: int) -> LocalBlocks | None:
        """Return what copies blocks of `tokens` tokens to and from the host; None if slots hold more than tokens."""
        if self._state_names or not self.specs:
            return None
        return LocalBlocks(self.form(tokens), self._by_block(tokens), self._stream)

    def check(self, saved: SavedSequence) -> None:
        """Raise ExecutionError if a sequence is of another model or other caches, is too long, or lacks bytes."""
        check_saved(saved, self.form(saved.tokens), self.max_length)

    def close(self) -> None:
        """Free the memory."""
        self._arrays.clear()
        self._marked.clear()

    def _shape(self, spec: InputSpec) -> tuple[int, ...]:
        """Return the shape of an input's memory."""
        return (self.slots, *spec.shape[1:])

    def _part(self, name: str, slot: int, count: int) -> torch.Tensor:
        """Return a slot's state, or its first `count` tokens [K, count, H]."""
        return self._arrays[name][slot] if name in self._state_names else self._read(name, slot, count)

    def _read(self, name: str, slot: int, count: int) -> torch.Tensor:
        return self._arrays[name][slot][:, : self.context.count(count)]

    def _write(self, name: str, slot: int, values: torch.Tensor) -> None:
        """Write this rank's part of a slot's first tokens [K, n, H]."""
        target = self._arrays[name][slot][:, : values.shape[1]]
        self._run(partial(target.copy_, values, non_blocking=True))

    def _by_block(self, tokens: int) -> dict[str, torch.Tensor]:
        """Return the caches as [slots, K, blocks, tokens, H]."""
        count, own_tokens = self.max_length // tokens, self.context.count(tokens)
        arrays = {name: codes(array)[:, :, : count * own_tokens] for name, array in self._arrays.items()}
        return {name: array.view(*array.shape[:2], count, own_tokens, -1) for name, array in arrays.items()}

    def _copy_tokens(self, source: int, target: int, tokens: slice) -> None:
        start, stop, _ = tokens.indices(self.max_length)
        tokens = slice(self.context.count(start), self.context.count(stop))
        for spec in self.specs:
            array = self._arrays[spec.name]
            self._run(partial(array[target][:, tokens].copy_, array[source][:, tokens]))

    def _places(self, tokens: NewTokens, size: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return where `size` new tokens of each row go: slots and positions, which broadcast to [R, S]."""
        positions = tokens.starts[:, None] + torch.arange(size, device=tokens.starts.device)
        if self.context.is_whole:
            return tokens.slots[:, None], positions
        nobody = self.context.linear_length(self.max_length) - 1
        places = torch.where(self.context.is_here(positions), self.context.places(positions), nobody)
        return tokens.slots[:, None], places

    def _place_of(self, slots: Ints, positions: Ints) -> Place:
        """Return the location of cached tokens.

        Only trees of guesses move tokens; they need a rank that holds all positions.
        """
        assert self.context.is_whole
        return slots.astype(np.int64), positions.astype(np.int64)

    def _check_position(self, slot: int, count: int) -> None:
        if self.states and self.positions[slot] != count:
            raise _misplaced(slot, int(self.positions[slot]), count)

    @property
    def _device(self) -> torch.device:
        return next(iter(self._arrays.values())).device

    def _run(self, work: Callable[[], object]) -> None:
        """Do `work` in order with all other operations on the caches."""
        if self._stream is None:
            work()
        else:
            self._stream.run(work)


def _by_feeder(kept: Sequence[InputSpec]) -> list[list[InputSpec]]:
    """Return the inputs grouped by origin: caches, states, and an encoder's output."""
    return [[spec for spec in kept if spec.feeder == feeder] for feeder in ("cache", "state", "encoder")]


def _zeros(shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    """Return zeroed memory of the caller's; the system clears pages on first use."""
    return torch.from_numpy(np.zeros(math.prod(shape) * dtype.itemsize, np.uint8)).view(dtype).view(*shape)


def _misplaced(slot: int, held: int, wanted: int) -> ExecutionError:
    what = f"the recurrent states of slot {slot} have read {held} tokens, not {wanted}"
    return ExecutionError(what, "recurrent states", "go on after all tokens that they have read, or begin again")
