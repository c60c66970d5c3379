"""The KV caches of all ranks, their blocks on the host, and their adapters, each as one.

Every rank repeats rank 0's operations on its own.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from trtkit.jobs.json_form import to_json
from trtkit.llm.cache.transfers import CopyTokens
from trtkit.llm.distributed.messages import Message
from trtkit.llm.execution.paged_cache import PagedCache
from trtkit.llm.execution.saved import CacheForm, SavedSequence, check_saved, check_tokens
from trtkit.network.input_spec import LORA_ENDS

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from trtkit.llm.cache import PageTables
    from trtkit.llm.cache.transfers import Copy
    from trtkit.llm.distributed.channel import Channel
    from trtkit.llm.execution.adapters import AdapterMemory, Matrices
    from trtkit.llm.execution.call import Call
    from trtkit.llm.execution.host_blocks import CacheBlocks
    from trtkit.llm.execution.kv_cache import KvCache
    from trtkit.llm.execution.saved import CacheArray
    from trtkit.llm.sequences import Ints


class GroupCache:
    """A SequenceCache of all ranks. A saved sequence holds every rank's part, in rank order.

    local: rank 0's. arrays: those of every rank. run: sends the other ranks a message and does rank 0's share of it.
    """

    def __init__(
        self,
        local: KvCache,
        arrays: Sequence[tuple[CacheArray, ...]],
        channel: Channel,
        run: Callable[[Message, Callable[[], None]], None],
    ) -> None:
        self._local, self._channel, self._run = local, channel, run
        self._parts = [CacheForm("", 0, rank_arrays) for rank_arrays in arrays]
        self.model = ""
        self.positions = local.positions

    @property
    def pages(self) -> PageTables | None:
        """The page tables; rank 0 allocates pages for all ranks."""
        return self._local.pages

    def prepare(self, call: Call) -> Call:
        """Return a call with the pages of its rows, for every rank; each rank copies pages when it runs the call.

        All rows run together if another rank has states, which are in consecutive slots, or no pages at all.
        """
        placed = self._local.assign(call)
        if placed.pages is None or (not self.has_states and all(part.arrays for part in self._parts)):
            return placed
        return replace(placed, pages=replace(placed.pages, groups=None))

    @property
    def has_slot_memory(self) -> bool:
        """Whether a slot holds more of its sequence than keys and values."""
        return self.has_states

    @property
    def has_states(self) -> bool:
        """Whether layers of any rank keep recurrent states."""
        return any(array.is_state for part in self._parts for array in part.arrays)

    @property
    def block_multiple(self) -> int:
        """Divisor of the tokens of blocks saved on their own."""
        return self._local.block_multiple

    def copy(self, source: int, target: int, tokens: slice) -> None:
        """Copy cached tokens of slot `source` to slot `target`."""
        start, stop, _ = tokens.indices(self._local.max_length)
        self.carry_out([CopyTokens(source, target, start, stop)])

    def carry_out(self, copies: Sequence[Copy]) -> None:
        """Carry out a batch's copies within the caches, in order, on every rank."""
        message = Message("carry_out", {"copies": to_json(tuple(copies))})
        self._run(message, lambda: self._local.carry_out(copies))

    def tell(self, slot: int, pages: Sequence[int]) -> None:
        """Record the pages that hold a slot's tokens; the other ranks learn them with each call."""
        self._local.tell(slot, pages)

    def set_pages(self, changes: Ints) -> None:
        """Apply changes of page tables; the other ranks learn them with each call."""
        self._local.set_pages(changes)

    def move(self, slots: Ints, sources: Ints, targets: Ints) -> None:
        """Copy one cached token within each slot: slots [R], source and target positions [R]."""
        fields = {"slots": slots.tolist(), "sources": sources.tolist(), "targets": targets.tolist()}
        self._run(Message("move", fields), lambda: self._local.move(slots, sources, targets))

    def mark(self, rows: slice) -> None:
        """Save the states of consecutive slots, for `rewind`."""
        self._run(Message("mark", {"start": rows.start, "stop": rows.stop}), lambda: self._local.mark(rows))

    def rewind(self, slots: Sequence[int]) -> None:
        """Restore the states of slots to those saved by `mark`."""
        self._run(Message("rewind", {"slots": slots}), lambda: self._local.rewind(slots))

    def form(self, tokens: int) -> CacheForm:
        """Return the layout of a saved sequence of `tokens` tokens.

        Each rank's arrays, with the rank in their names.
        """
        named = [
            replace(array, name=f"rank{rank}/{array.name}")
            for rank, part in enumerate(self._parts)
            for array in part.arrays
        ]
        return CacheForm(self.model, tokens, tuple(named))

    def save(self, slot: int, count: int) -> SavedSequence:
        """Copy the first `count` tokens of a slot from all ranks to the host."""
        check_tokens(count, self._local.max_length)
        form = self.form(count)
        data = torch.empty(form.size_bytes, dtype=torch.uint8)

        def gather() -> None:
            for rank, (start, stop) in enumerate(self._bounds(count)):
                if rank and start < stop:  # with shared positions, a rank may hold none of a few tokens
                    data[start:stop] = self._channel.receive(rank, (stop - start,), torch.uint8)
                elif not rank:
                    data[start:stop] = self._local.save(slot, count).data

        self._tell_pages(slot)
        self._run(Message("save", {"slot": slot, "count": count}), gather)
        return SavedSequence(form, data)

    def load(self, slot: int, saved: SavedSequence) -> None:
        """Load a saved sequence into a slot. Raises ExecutionError for what `check` refuses."""
        self.check(saved)
        starts = [start for start, _ in self._bounds(saved.tokens)]
        self._local.make_room(slot, saved.tokens)
        self._tell_pages(slot)
        message = Message("load", {"slot": slot, "tokens": saved.tokens, "starts": starts}, {"data": saved.data})
        self._run(message, lambda: load_part(self._local, 0, message))

    def blocks(self, tokens: int) -> GroupBlocks | None:
        """Return what copies blocks of `tokens` tokens to and from rank 0's host; None for recurrent states."""
        if self.has_slot_memory:
            return None
        local = self._local.blocks(tokens) if self._local.specs else NoBlocks(tokens, self._local.max_length // tokens)
        return None if local is None else GroupBlocks(local, self._parts, self._channel, self._run)

    def check(self, saved: SavedSequence) -> None:
        """Raise ExecutionError if a sequence is of another model or grid, is too long, or lacks bytes."""
        check_saved(saved, self.form(saved.tokens), self._local.max_length)

    def close(self) -> None:
        """Free rank 0's memory."""
        self._local.close()

    def _tell_pages(self, slot: int) -> None:
        """Send every rank the pages that hold a slot's tokens."""
        if isinstance(self._local, PagedCache):
            self._run(Message("table", {"slot": slot, "pages": self._local.table[slot].tolist()}), lambda: None)

    def _bounds(self, tokens: int) -> list[tuple[int, int]]:
        """Return the bounds of each rank's part of a saved sequence, in bytes."""
        bounds, start = [], 0
        for part in self._parts:
            size = replace(part, tokens=tokens).size_bytes
            bounds.append((start, start + size))
            start += size
        return bounds


def load_part(local: KvCache, rank: int, message: Message) -> None:
    """Load this rank's part of a saved sequence into a slot."""
    slot, tokens = message.number("slot"), message.number("tokens")
    form = local.form(tokens)
    start = message.numbers("starts")[rank]
    local.load(slot, SavedSequence(form, message.tensors["data"][start : start + form.size_bytes].clone()))


class GroupBlocks:
    """A CacheBlocks of all ranks. A block holds every rank's part, in rank order. Copies are synchronous.

    local: rank 0's. parts: layout of a block on each rank. run: sends the other ranks a message and does rank 0's
    share.
    """

    def __init__(
        self,
        local: CacheBlocks,
        parts: Sequence[CacheForm],
        channel: Channel,
        run: Callable[[Message, Callable[[], None]], None],
    ) -> None:
        self._local, self._channel, self._run = local, channel, run
        self._sizes = [replace(part, tokens=local.tokens).size_bytes for part in parts]
        self.tokens, self.size_bytes = local.tokens, sum(self._sizes)

    is_waited_for = True

    def places(self, slot: int, first: int, count: int) -> list[int]:
        """Return the numbers of a slot's blocks, which are the same on every rank."""
        return self._local.places(slot, first, count)

    def save(self, positions: Sequence[int], rows: Sequence[torch.Tensor]) -> Callable[[], bool]:
        """Copy blocks of all ranks to host memory; see CacheBlocks."""

        def gather() -> None:
            parts = [blocks_part(self._local, positions)]
            for rank, size in enumerate(self._sizes[1:], 1):
                if not size:
                    continue
                parts.append(self._channel.receive(rank, (len(positions), size), torch.uint8))
            for row, data in zip(rows, torch.cat(parts, 1), strict=True):
                row.copy_(data)

        self._run(Message("save_blocks", {"tokens": self.tokens, "places": positions}), gather)
        return lambda: True

    def load(self, positions: Sequence[int], rows: Sequence[torch.Tensor]) -> Callable[[], None]:
        """Copy blocks of all ranks from host memory; see CacheBlocks."""
        starts = [sum(self._sizes[:rank]) for rank in range(len(self._sizes))]
        fields: dict[str, object] = {"tokens": self.tokens, "starts": starts, "places": positions}
        message = Message("load_blocks", fields, {"data": torch.stack(list(rows))})
        self._run(message, lambda: load_blocks_part(self._local, 0, message))
        return lambda: None

    def last_copy(self) -> None:
        """Return None: the caller measures copies."""

    def settle(self) -> None:
        """Return at once: every copy has finished."""

    def memory(self, count: int) -> torch.Tensor:
        """Return host memory for `count` blocks."""
        return torch.empty(count, self.size_bytes, dtype=torch.uint8)


class NoBlocks:
    """A CacheBlocks of a rank whose layers have no attention: it holds no part of blocks, but numbers them.

    blocks_of_slot: number of blocks per slot on the other ranks.
    """

    size_bytes = 0
    is_waited_for = True

    def __init__(self, tokens: int, blocks_of_slot: int) -> None:
        self.tokens, self._blocks_of_slot = tokens, blocks_of_slot

    def places(self, slot: int, first: int, count: int) -> list[int]:
        """Return the numbers of a slot's blocks: indices over all slots."""
        start = slot * self._blocks_of_slot + first
        return list(range(start, start + count))

    def save(self, positions: Sequence[int], rows: Sequence[torch.Tensor]) -> Callable[[], bool]:  # noqa: ARG002
        """Copy nothing; see CacheBlocks."""
        return lambda: True

    def load(self, positions: Sequence[int], rows: Sequence[torch.Tensor]) -> Callable[[], None]:  # noqa: ARG002
        """Copy nothing; see CacheBlocks."""
        return lambda: None

    def last_copy(self) -> None:
        """Return None: nothing is copied."""

    def settle(self) -> None:
        """Return at once."""

    def memory(self, count: int) -> torch.Tensor:
        """Return rows without bytes."""
        return torch.empty(count, 0, dtype=torch.uint8)


def blocks_part(local: CacheBlocks, positions: Sequence[int]) -> torch.Tensor:
    """Return this rank's part of blocks, [N, size_bytes], on the host."""
    part = local.memory(len(positions))
    local.save(positions, list(part))
    local.settle()
    return part


def load_blocks_part(local: CacheBlocks, rank: int, message: Message) -> None:
    """Load this rank's part of blocks."""
    start, positions = message.numbers("starts")[rank], message.numbers("places")
    local.load(positions, list(message.tensors["data"][:, start : start + local.size_bytes]))()
    local.settle()


class GroupAdapters:
    """AdapterSlots of all ranks.

    local: rank 0's. run: sends the other ranks a message and does rank 0's share of it.
    """

    def __init__(self, local: AdapterMemory, run: Callable[[Message, Callable[[], None]], None]) -> None:
        self._local, self._run = local, run
        self.most, self.dtype = local.most, local.dtype

    def write(self, rows: Sequence[int], adapter: int, matrices: Matrices) -> None:
        """Write an adapter into `rows` on every rank."""
        tensors = {
            path + end: matrix for path, pair in matrices.items() for end, matrix in zip(LORA_ENDS, pair, strict=True)
        }
        message = Message("write_adapter", {"adapter": adapter, "rows": rows}, tensors)
        self._run(message, lambda: self._local.write(rows, adapter, matrices))

    def erase(self, rows: Sequence[int]) -> None:
        """Clear `rows` on every rank."""
        self._run(Message("erase_adapter", {"rows": rows}), lambda: self._local.erase(rows))


def write_own(memory: AdapterMemory, message: Message) -> None:
    """Write this rank's share of an adapter from rank 0's message."""
    first, second = LORA_ENDS
    paths = [name.removesuffix(first) for name in message.tensors if name.endswith(first)]
    rows, adapter = message.numbers("rows"), message.number("adapter")
    memory.write(
        rows, adapter, {path: (message.tensors[path + first], message.tensors[path + second]) for path in paths}
    )
