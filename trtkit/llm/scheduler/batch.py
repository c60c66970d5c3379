"""A step as data: preemptions, copies, decoding slots and prompt chunks; and the events of slots."""

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
"""Limit on computed tokens per requested token in a prompt call; beyond it, a second call is cheaper than padding."""
MOST_ATTENTION_PADDING, FREE_PLACES = 4, 512
"""The same limit for packed calls, in which only attention computes padding; FREE_PLACES rows x tokens cost less than
reading the weights."""
FREE_TILES = 4
"""Tiles of a packed call that take no longer than reading the weights, so that idle tokens in them are free."""


@dataclass(frozen=True)
class Chunk:
    """A piece of one slot's prompt: `count` tokens from `start` on."""

    slot: int
    start: int
    count: int


class SlotTaken(NamedTuple, Generic[T]):
    """A request got a slot. reused: its tokens found in a cache; restored: those of them found on the host."""

    slot: int
    request: T
    reused: int
    restored: int


class PrefixMatched(NamedTuple):
    """A slot that has read nothing yet found a longer cached prefix than when it was taken: `reused` more tokens."""

    slot: int
    reused: int


class SlotMoved(NamedTuple):
    """A request continues in another slot, to which its cache was copied."""

    source: int
    target: int


class SlotLeft(NamedTuple):
    """A request was preempted or has ended."""

    slot: int


SlotChange = SlotTaken[T] | PrefixMatched | SlotMoved | SlotLeft


class Batch(NamedTuple):
    """Everything a step does, in order.

    preempted: slots taken from requests. transfers: saves, copies and loads of caches in the order in which they must
    run, since memory is reused: a slot may be saved, loaded, copied from and saved again in one step.
    pages: changes of page tables as (slot, index, page). decode: sorted slots [R] that read their last token and draw
    the next. prefill: prompt chunks, grouped by call.
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
        """Number of prompt tokens that the step reads."""
        return sum([chunk.count for group in self.prefill for chunk in group]) if self.prefill else 0

    def to_json(self) -> object:
        """Return the batch as JSON data."""
        return to_json(self._stored())

    @classmethod
    def from_json(cls, data: object) -> Batch:
        """Return the batch that `to_json` wrote. Raises TypeError for other data."""
        stored = from_json(_StoredBatch, data)
        decode, prefill = np.array(stored.decode, np.int64), [list(group) for group in stored.prefill]
        return cls(decode, prefill, stored.preempted, stored.transfers, stored.pages)

    def _stored(self) -> _StoredBatch:
        prefill = tuple(map(tuple, self.prefill))
        return _StoredBatch(tuple(self.decode.tolist()), prefill, self.preempted, self.transfers, self.pages)


@dataclass(frozen=True)
class _StoredBatch:
    """A Batch in plain numbers, for comparison and storage."""

    decode: tuple[int, ...]
    prefill: tuple[tuple[Chunk, ...], ...]
    preempted: tuple[int, ...]
    transfers: tuple[Transfer, ...]
    pages: tuple[tuple[int, int, int], ...]


@dataclass(frozen=True)
class CallForm:
    """Limits of a prompt call.

    max_length: T, tokens of a slot. most_tokens: of a packed call, in which only attention has padding; None if calls
    are not packed. padding: limit on computed tokens per requested token if they are not. needs_neighbors: whether a
    call's slots must be consecutive.
    """

    max_length: int
    most_tokens: int | None = None
    padding: float = MOST_PADDING
    needs_neighbors: bool = True

    def takes(self, group: Sequence[Chunk]) -> bool:
        """Whether the last chunk of a group may join the others: its padding fits the limit and the slots."""
        counts = [chunk.count for chunk in group]
        is_in_place = not self.needs_neighbors or group[-1].slot == group[-2].slot + 1
        has_room = max(chunk.start for chunk in group) + max(counts) <= self.max_length
        places, tokens = len(counts) * max(counts), sum(counts)
        if self.most_tokens is None:
            return is_in_place and has_room and places <= self.padding * tokens
        is_small = places <= max(MOST_ATTENTION_PADDING * tokens, FREE_PLACES)
        return is_in_place and has_room and tokens <= self.most_tokens and is_small


def group_chunks(chunks: Sequence[Chunk], form: CallForm) -> list[list[Chunk]]:
    """Return the chunks grouped by call."""
    groups: list[list[Chunk]] = []
    for chunk in sorted(chunks, key=lambda chunk: chunk.slot):
        if groups and form.takes([*groups[-1], chunk]):
            groups[-1].append(chunk)
        else:
            groups.append([chunk])
    return groups


def idle_tokens(rows: int, prompt_tokens: int, tile: int) -> int:
    """Return the number of idle tokens of a packed call: those that fill its last tile, and one if no row decodes.

    rows: decoding rows. tile: tokens computed together; 1 on the reference executor, which has no idle tokens.
    """
    return 0 if tile == 1 else -(max(rows, 1) + prompt_tokens) % tile + (rows == 0)


def in_whole_tiles(chunks: list[Chunk], rows: int, tile: int, slots: Slots) -> list[Chunk]:
    """Return a packed call's chunks, one of them shortened so that the call fills whole tiles without idle tokens.

    The last chunk that does not complete its prompt is shortened; none if the call is small or would then read fewer
    prompt tokens per tile. rows: decoding rows.
    """
    prompt_tokens = sum(chunk.count for chunk in chunks)
    tiles, excess = divmod(max(rows, 1) + prompt_tokens, tile)
    if not excess or tiles < FREE_TILES or excess * (tiles + 1) > prompt_tokens:
        return chunks
    lengths, soft = slots.sequences.lengths, slots.sequences.soft
    for index, chunk in reversed(list(enumerate(chunks))):
        goes_on = chunk.start + chunk.count < lengths[chunk.slot]
        if goes_on and chunk.count > excess and chunk.slot not in soft:  # an image is never split
            return [*chunks[:index], replace(chunk, count=chunk.count - excess), *chunks[index + 1 :]]
    return chunks


def rows_between(decode: Ints) -> int:
    """Return the number of rows from the first to the last of sorted slots, including slots between them."""
    return decode.item(-1) - decode.item(0) + 1 if decode.size else 0


def are_scattered(slots: Ints) -> bool:
    """Whether sorted `slots` fill less than half of the range from the first to the last of them."""
    return 2 * slots.size < rows_between(slots)


def next_chunk(slots: Slots, slot: int, most: int) -> Chunk:
    """Return a slot's next prompt chunk of at most `most` tokens; longer if an image would be split."""
    start = int(slots.cached[slot])
    count = min(int(slots.sequences.lengths[slot]) - start, most)
    soft = slots.sequences.soft.get(slot)
    return Chunk(slot, start, count if soft is None else soft.whole(start, start + count) - start)
