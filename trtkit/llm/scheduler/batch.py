"""A step as data: copies, slots that decode, and pieces of prompts; and how slots change hands."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Generic, NamedTuple

import numpy as np

from trtkit.jobs.json_form import from_json, to_json
from trtkit.llm.cache.transfers import Transfer  # noqa: TC001 (read from JSON by its types)
from trtkit.llm.scheduler.request import T

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trtkit.llm.scheduler.slots import Slots
    from trtkit.llm.sequences import Ints

MOST_PADDING = 1.25
"""Tokens that a call for prompts computes, for each that it is for: more costs more than a call of its own."""
MOST_ATTENTION_PADDING, FREE_PLACES = 4, 512
"""The same of a packed call, whose padding only attention computes; so many places cost less than reading weights."""
FREE_TILES = 4
"""Of a packed call: so many take no longer than reading weights, so that idle tokens among theirs cost nothing."""


@dataclass(frozen=True)
class Chunk:
    """The next tokens of one slot's prompt: from `start` on, `count` of them."""

    slot: int
    start: int
    count: int


class SlotTaken(NamedTuple, Generic[T]):
    """A request has a slot. reused, restored: its tokens that were cached already, and those of them on the host."""

    slot: int
    request: T
    reused: int
    restored: int


class PrefixMatched(NamedTuple):
    """A slot that has read nothing yet begins with more cached tokens than when it was taken: `reused` more."""

    slot: int
    reused: int


class SlotMoved(NamedTuple):
    """A request goes on in another slot, a copy of its own, which it has left."""

    source: int
    target: int


class SlotLeft(NamedTuple):
    """A request has lost its slot, or has ended."""

    slot: int


SlotChange = SlotTaken[T] | PrefixMatched | SlotMoved | SlotLeft


class Batch(NamedTuple):
    """All that a step does, in order.

    preempted: slots that requests have lost, so that others may begin next. transfers: what is saved, copied and
    loaded; kinds are not apart, since memory is reused: a slot may be saved, loaded, copied from and saved again.
    pages: what has changed in page tables, as slot, place and page. decode: sorted slots [R] that read their last token
    and draw the next. prefill: chunks, those of one call together.
    """

    decode: Ints
    prefill: Sequence[Sequence[Chunk]] = ()
    preempted: tuple[int, ...] = ()
    transfers: tuple[Transfer, ...] = ()
    pages: tuple[tuple[int, int, int], ...] = ()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Batch) and self._stored() == other._stored()

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __hash__(self) -> int:
        return hash(self._stored())

    @property
    def prompt_tokens(self) -> int:
        """Tokens of prompts that it reads."""
        return sum([chunk.count for group in self.prefill for chunk in group]) if self.prefill else 0

    def to_json(self) -> object:
        """Return it as JSON data."""
        return to_json(self._stored())

    @classmethod
    def from_json(cls, data: object) -> Batch:
        """Return what `to_json` made data of. Raises TypeError for other data."""
        stored = from_json(_StoredBatch, data)
        decode, prefill = np.array(stored.decode, np.int64), [list(group) for group in stored.prefill]
        return cls(decode, prefill, stored.preempted, stored.transfers, stored.pages)

    def _stored(self) -> _StoredBatch:
        prefill = tuple(map(tuple, self.prefill))
        return _StoredBatch(tuple(self.decode.tolist()), prefill, self.preempted, self.transfers, self.pages)


@dataclass(frozen=True)
class _StoredBatch:
    """A Batch of plain numbers, to compare and to store."""

    decode: tuple[int, ...]
    prefill: tuple[tuple[Chunk, ...], ...]
    preempted: tuple[int, ...]
    transfers: tuple[Transfer, ...]
    pages: tuple[tuple[int, int, int], ...]


@dataclass(frozen=True)
class CallForm:
    """What a call for prompts can be.

    max_length: T, tokens of a slot. most_tokens: of a packed call, in which only attention has padding; None if it is
    not packed. padding: of another call, how many times its tokens it may compute at most. needs_neighbors: whether
    its slots have to be neighbors.
    """

    max_length: int
    most_tokens: int | None = None
    padding: float = MOST_PADDING
    needs_neighbors: bool = True

    def takes(self, group: Sequence[Chunk]) -> bool:
        """Whether the last of a group's chunks may join the others: so that padding stays small and fits."""
        counts = [chunk.count for chunk in group]
        is_in_place = not self.needs_neighbors or group[-1].slot == group[-2].slot + 1
        has_room = max(chunk.start for chunk in group) + max(counts) <= self.max_length
        places, tokens = len(counts) * max(counts), sum(counts)
        if self.most_tokens is None:
            return is_in_place and has_room and places <= self.padding * tokens
        is_small = places <= max(MOST_ATTENTION_PADDING * tokens, FREE_PLACES)
        return is_in_place and has_room and tokens <= self.most_tokens and is_small


def group_chunks(chunks: Sequence[Chunk], form: CallForm) -> list[list[Chunk]]:
    """Return chunks that one call takes together."""
    groups: list[list[Chunk]] = []
    for chunk in sorted(chunks, key=lambda chunk: chunk.slot):
        if groups and form.takes([*groups[-1], chunk]):
            groups[-1].append(chunk)
        else:
            groups.append([chunk])
    return groups


def idle_tokens(rows: int, prompt_tokens: int, tile: int) -> int:
    """Return the idle tokens of a packed call: they fill its last tile, and one is the row that an engine's call needs.

    rows: that decode. tile: tokens that are computed together; 1 on the reference executor, where none are idle.
    """
    return 0 if tile == 1 else -(max(rows, 1) + prompt_tokens) % tile + (rows == 0)


def in_whole_tiles(chunks: list[Chunk], rows: int, tile: int, slots: Slots) -> list[Chunk]:
    """Return a packed call's chunks, the last that does not end its prompt cut so that no token of the call is idle.

    Unless the call is small, or would read fewer tokens of prompts per tile. rows: that decode.
    """
    prompt_tokens = sum(chunk.count for chunk in chunks)
    tiles, excess = divmod(max(rows, 1) + prompt_tokens, tile)
    if not excess or tiles < FREE_TILES or excess * (tiles + 1) > prompt_tokens:
        return chunks
    lengths, soft = slots.sequences.lengths, slots.sequences.soft
    for place, chunk in reversed(list(enumerate(chunks))):
        goes_on = chunk.start + chunk.count < lengths[chunk.slot]
        if goes_on and chunk.count > excess and chunk.slot not in soft:  # images are read whole
            return [*chunks[:place], replace(chunk, count=chunk.count - excess), *chunks[place + 1 :]]
    return chunks


def rows_between(decode: Ints) -> int:
    """Return how many rows a call for sorted slots has, those of slots between them too."""
    return decode.item(-1) - decode.item(0) + 1 if decode.size else 0


def are_scattered(slots: Ints) -> bool:
    """Whether fewer than half of the slots between the first and the last of sorted `slots` are among them."""
    return 2 * slots.size < rows_between(slots)


def next_chunk(slots: Slots, slot: int, most: int) -> Chunk:
    """Return a slot's next tokens, at most `most`; more if an image has to be computed whole."""
    start = int(slots.cached[slot])
    count = min(int(slots.sequences.lengths[slot]) - start, most)
    soft = slots.sequences.soft.get(slot)
    return Chunk(slot, start, count if soft is None else soft.whole(start, start + count) - start)
