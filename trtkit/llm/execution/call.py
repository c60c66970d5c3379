"""One call of a decoder-only LLM's network."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from trtkit.errors import ExecutionError
from trtkit.llm.cache import PageCopies
from trtkit.network.input_spec import ADAPTER_IDS, DECODE_POSITION_IDS, kv_window

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    import torch

    from trtkit.llm.cache.page_tables import Tables
    from trtkit.llm.sequences import Ints
    from trtkit.llm.soft_tokens import SoftTokens


@dataclass(frozen=True, eq=False)
class CallPages:
    """The pages of a call's rows.

    table: [R, n] int32, each row's pages in order, up to that of its last new token. page_tokens: tokens per page.
    copies: pages to copy before the call. groups: [R], number of the group that each row runs in, -1 for rows that do
    not run; None if all rows run together.
    """

    table: Tables
    page_tokens: int
    copies: PageCopies
    groups: Ints | None = None

    @property
    def tokens(self) -> int:
        """Number of cached tokens per row that attention reads."""
        return int(self.table.shape[1]) * self.page_tokens

    def part(self, rows: slice, *, is_first: bool) -> CallPages:
        """Return the pages of some rows; only the first part of a call makes the copies."""
        copies = self.copies if is_first else PageCopies([], [])
        groups = None if self.groups is None or self.groups[rows].max() < 0 else self.groups[rows]
        return replace(self, table=self.table[rows], copies=copies, groups=groups)

    def of(self, rows: Ints, stops: Ints) -> CallPages:
        """Return the pages of some rows that read at most `stops` [R] tokens, without copies."""
        window = kv_window(max(1, int(stops.max())), self.tokens)
        table = np.ascontiguousarray(self.table[rows, : -(-window // self.page_tokens)])
        return CallPages(table, self.page_tokens, PageCopies([], []))


@dataclass(frozen=True, eq=False)
class CallTree:
    """The tree that the new tokens of each row form, in depth-first order.

    depths: [R, S], number of ancestors within the row. ends: [R, S], column after the last descendant.
    """

    depths: Ints
    ends: Ints

    def of_rows(self, rows: Ints, count: int) -> CallTree:
        """Return the trees spread over `count` rows: row i becomes row `rows[i]`; the others are chains."""
        width = self.depths.shape[1]
        depths, ends = np.tile(np.arange(width), (count, 1)), np.full((count, width), width)
        depths[rows], ends[rows] = self.depths, self.ends
        return CallTree(depths, ends)


@dataclass(frozen=True, eq=False)
class Call:
    """New tokens for consecutive slots, from `first_slot` on.

    ids: [R, S]; -1, in rows of one token, is the token that the slot drew last and the host does not know yet.
    starts: [R], tokens already in each slot's cache. counts: [R], tokens among a row's ids; the rest is padding, and a
    row without tokens is idle. soft: vectors in the prompts, by slot. hidden: [R, S, D], output of the previous
    pipeline stage; None on the first stage. pages: see `KvCache.prepare`. scattered: [R], the slots of a group of a
    paged call, if they are not consecutive.
    adapters: [R], number of each row's LoRA adapter, 0 for none; None if no row has one.
    tree: of guesses with alternatives; None if each token follows the one before it.
    """

    first_slot: int
    ids: Ints
    starts: Ints
    counts: Ints
    soft: Mapping[int, SoftTokens] = field(default_factory=dict)
    hidden: torch.Tensor | None = None
    pages: CallPages | None = None
    scattered: Ints | None = None
    adapters: Ints | None = None
    tree: CallTree | None = None

    def __post_init__(self) -> None:
        """Check that all arrays have as many rows: others would write into another slot's memory."""
        assert self.ids.shape[0] == len(self.starts) == len(self.counts)

    @property
    def rows(self) -> slice:
        """The slots, as a slice of the caches."""
        return slice(self.first_slot, self.first_slot + len(self.starts))

    @property
    def slots(self) -> Ints:
        """The slot of each row, [R]."""
        return self.first_slot + np.arange(len(self.starts)) if self.scattered is None else self.scattered

    @property
    def reads_prompts(self) -> bool:
        """Whether a packed network reads the tokens as prompt chunks, not as trees or single tokens."""
        return self.ids.shape[1] > 1 and self.tree is None

    @property
    def token_shape(self) -> tuple[int, ...]:
        """Shape [R, S] of the token axes in hidden states that pipeline stages exchange."""
        rows, size = self.ids.shape
        return rows, size

    @property
    def runs_together(self) -> bool:
        """Whether all rows run at once rather than group by group."""
        return self.pages is None or self.pages.groups is None

    def groups(self) -> Iterator[tuple[Ints, Call]]:
        """Yield each group's rows and the call that runs them."""
        assert self.pages is not None
        assert self.pages.groups is not None
        for group in range(int(self.pages.groups.max()) + 1):
            rows = (self.pages.groups == group).nonzero()[0]
            if rows.size:
                yield rows, self._of(rows)

    def padded(self, rows: int) -> Call:
        """Return a group's call, padded to `rows` with idle rows."""
        more = rows - len(self.starts)
        if not more:
            return self
        assert self.pages is not None
        padded = self._of(np.r_[: len(self.starts), np.zeros(more, np.int64)])
        assert padded.pages is not None
        for array in (padded.starts, padded.counts, padded.pages.table):
            array[-more:] = 0
        return padded

    def _of(self, rows: Ints) -> Call:
        """Return the call of some rows of a paged call."""
        assert self.pages is not None
        part = self.with_rows(rows)
        pages = self.pages.of(rows, part.starts + part.counts)
        return replace(part, first_slot=0, pages=pages, scattered=self.slots[rows])

    def with_rows(self, rows: Ints | slice) -> Call:
        """Return the call with the per-row data of some rows; the caller sets slots and pages."""
        hidden = None if self.hidden is None else self.hidden[rows]
        adapters = None if self.adapters is None else self.adapters[rows]
        ids, starts, counts = self.ids[rows], self.starts[rows], self.counts[rows]
        tree = None if self.tree is None else CallTree(self.tree.depths[rows], self.tree.ends[rows])
        return replace(self, ids=ids, starts=starts, counts=counts, hidden=hidden, adapters=adapters, tree=tree)

    def feed(self) -> dict[str, np.ndarray]:
        """Return the network's inputs except caches, as int32 arrays.

        Padding is written after a row's tokens, where later tokens overwrite it. An idle row attends to one token,
        since the softmax of none is NaN.
        """
        feed = {
            "input_ids": self.ids,
            "position_ids": self.position_ids,
            "branch_ends": self.branch_ends,
            "write_indices": self.starts,
            "kv_lengths": np.maximum(self.starts + self.counts, 1),
            "last_token_index": np.maximum(self.counts - 1, 0),
            "token_counts": self.counts,
            ADAPTER_IDS: self.adapter_ids,
        }
        if self.pages is not None:
            feed["page_table"] = self.pages.table
        return {name: np.ascontiguousarray(value, np.int32) for name, value in feed.items()}

    @property
    def position_ids(self) -> Ints:
        """Position of each new token in its sequence, [R, S]."""
        new = np.arange(self.ids.shape[1]) if self.tree is None else self.tree.depths
        positions: Ints = self.starts[:, None] + new
        return positions

    @property
    def branch_ends(self) -> Ints:
        """Position after the last descendant of each new token, [R, S]."""
        ends = np.full(self.ids.shape, self.ids.shape[1]) if self.tree is None else self.tree.ends
        places: Ints = self.starts[:, None] + ends
        return places

    @property
    def adapter_ids(self) -> Ints:
        """Number of each row's adapter, [R]; 0 for none."""
        return np.zeros_like(self.starts) if self.adapters is None else self.adapters

    def step_rows(self) -> np.ndarray:
        """Return [R, 5]: id, start, count, slot and adapter of rows with one new token, for `step_inputs`."""
        return np.stack([self.ids[:, 0], self.starts, self.counts, self.slots, self.adapter_ids], 1).astype(np.int32)

    def window(self, max_length: int) -> int:
        """Return the number of cached tokens that attention reads, at most `max_length`; idle rows count."""
        if self.pages is not None:
            return self.pages.tokens
        return kv_window(max(1, int((self.starts + self.counts).max())), max_length)

    def rope_position_ids(self) -> np.ndarray:
        """Return M-RoPE's positions [3, R, S] as int32: time, height and width, which are equal for text."""
        ids = np.broadcast_to(self.position_ids, (3, *self.ids.shape))
        ids = np.array(ids, np.int32)
        for row, soft in self.soft_rows():
            rope = soft.rope_at(int(self.starts[row]), ids.shape[2])
            ids[:, row] = ids[:, row] if rope is None else rope
        return ids

    def visible_lengths(self) -> np.ndarray:
        """Return how many tokens each new token attends to, [R, S] int32; those of an image attend to all of it.

        Raises ExecutionError if a row ends within an image whose tokens attend to each other.
        """
        lengths = np.array(self.starts[:, None] + np.arange(1, self.ids.shape[1] + 1), np.int32)
        for row, soft in self.soft_rows():
            start = int(self.starts[row])
            part = soft.within(start, start + int(self.counts[row]))
            if soft.ends is None or part.start == part.stop:
                continue
            if soft.ends[part.stop - 1] > start + self.counts[row]:
                what = "a call ends within an image whose tokens see each other"
                raise ExecutionError(what, f"slot {self.slots[row]}", "give all tokens of the image in one call")
            lengths[row, soft.places[part] - start] = soft.ends[part]
        return lengths

    @property
    def has_vectors(self) -> bool:
        """Whether vectors of prompts are among the new tokens."""
        spans = ((soft, int(self.starts[row]), int(self.counts[row])) for row, soft in self.soft_rows())
        return any(part.start < part.stop for part in (soft.within(at, at + count) for soft, at, count in spans))

    def soft_rows(self) -> Iterator[tuple[int, SoftTokens]]:
        """Yield each row whose prompt has vectors, and the vectors."""
        for row, slot in enumerate(self.slots.tolist()) if self.soft else ():
            soft = self.soft.get(slot)
            if soft is not None:
                yield row, soft

    def check(self, slots: int, max_length: int) -> None:
        """Raise ExecutionError if a row would write outside its slot."""
        last, size = int(self.starts.max()), self.ids.shape[1]
        if last + size > max_length:
            what = f"a slot of {max_length} tokens cannot hold {last} and {size} more"
            raise ExecutionError(what, "KV cache", "raise `llm.max_sequence_length`, or give fewer tokens")
        if self.rows.stop > slots:
            what = f"slots {self.rows.start} to {self.rows.stop - 1} requested; the model has {slots}"
            raise ExecutionError(what, "KV cache", "open the model with more slots")


def step_inputs(rows: torch.Tensor, tokens: torch.Tensor) -> dict[str, torch.Tensor]:
    """Return the inputs of rows [R, 5] with one new token, as `Call.feed` does, on the device of `rows`.

    tokens: [slots], the token that each slot drew last, for ids of -1.
    """
    ids, starts, counts, slots, adapters = rows.unbind(1)
    drawn = tokens[slots.long()].int()
    return {
        "input_ids": drawn.where(ids < 0, ids).clamp(min=0),  # negative for a row that failed and draws nothing
        "position_ids": starts,
        DECODE_POSITION_IDS: starts,
        "branch_ends": starts + 1,
        "write_indices": starts,
        "kv_lengths": (starts + counts).clamp(min=1),
        "last_token_index": (counts - 1).clamp(min=0),
        "token_counts": counts,
        ADAPTER_IDS: adapters,
    }
