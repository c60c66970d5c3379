"""What runs a decoder-only LLM's network: one call of it, and what every runtime offers."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

import numpy as np

from trtkit.errors import ExecutionError
from trtkit.network.input_spec import kv_window
from trtkit.runtime.paging import PageCopies

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import torch

    from trtkit.network.input_spec import InputSpec
    from trtkit.runtime.decoder.kv_cache import KvCache
    from trtkit.runtime.decoder.saved import CacheForm, SavedSequence
    from trtkit.runtime.paging import PageTables
    from trtkit.runtime.paging.tables import Tables
    from trtkit.runtime.sequences import Ints
    from trtkit.runtime.soft_tokens import SoftTokens


@dataclass(frozen=True, eq=False)
class CallPages:
    """Where a call's rows lie in a pool of pages.

    table: [R, n] int32, each row's pages in order, from its first token to its last new one. page_tokens: tokens of a
    page. copies: pages to copy before the call.
    """

    table: Tables
    page_tokens: int
    copies: PageCopies

    @property
    def tokens(self) -> int:
        """Cached tokens of each row that attention reads."""
        return int(self.table.shape[1]) * self.page_tokens

    def part(self, rows: slice, *, is_first: bool) -> CallPages:
        """Return those of a part of the call; the first part's run copies the pages."""
        return CallPages(self.table[rows], self.page_tokens, self.copies if is_first else PageCopies([], []))


@dataclass(frozen=True, eq=False)
class Call:
    """New tokens for neighbouring slots, from `first_slot` on.

    ids: [R, S]; -1, in a row of one token, is the one that the slot drew last, which the host does not know yet.
    starts: [R], tokens that each slot's cache holds already. counts: [R], how many of a row's ids are tokens; the rest
    is padding, and a row of none is idle. soft: vectors in the prompts, by slot. hidden: [R, S, D], what the pipeline
    stage before made of the tokens; None on the first stage. pages: see `KvCache.place`.
    """

    first_slot: int
    ids: Ints
    starts: Ints
    counts: Ints
    soft: Mapping[int, SoftTokens] = field(default_factory=dict)
    hidden: torch.Tensor | None = None
    pages: CallPages | None = None

    def __post_init__(self) -> None:
        """Check what would write into a neighbour's memory."""
        assert self.ids.shape[0] == len(self.starts) == len(self.counts)

    @property
    def rows(self) -> slice:
        """The slots, as a slice of the caches."""
        return slice(self.first_slot, self.first_slot + len(self.starts))

    def feed(self) -> dict[str, np.ndarray]:
        """Return the network's inputs but its caches, as int32 arrays.

        Padding is written behind a row's tokens, where the next ones overwrite it. An idle row attends to one token:
        with none, a softmax is not a number.
        """
        new = np.arange(self.ids.shape[1])
        feed = {
            "input_ids": self.ids,
            "position_ids": self.starts[:, None] + new,
            "write_indices": self.starts,
            "kv_lengths": np.maximum(self.starts + self.counts, 1),
            "last_token_index": np.maximum(self.counts - 1, 0),
            "token_counts": self.counts,
        }
        if self.pages is not None:
            feed["page_table"] = self.pages.table
        return {name: np.ascontiguousarray(value, np.int32) for name, value in feed.items()}

    def window(self, max_length: int) -> int:
        """Return how many cached tokens attention reads, where it does not read all `max_length`; idle rows count."""
        if self.pages is not None:
            return self.pages.tokens
        return kv_window(max(1, int((self.starts + self.counts).max())), max_length)

    def rope_position_ids(self) -> np.ndarray:
        """Return M-RoPE's positions [3, R, S] as int32: time, height and width, which are one for text."""
        ids = np.broadcast_to(self.starts[:, None] + np.arange(self.ids.shape[1]), (3, *self.ids.shape))
        ids = np.array(ids, np.int32)
        for row, soft in self.soft_rows():
            own = soft.rope_at(int(self.starts[row]), ids.shape[2])
            ids[:, row] = ids[:, row] if own is None else own
        return ids

    def visible_lengths(self) -> np.ndarray:
        """Return how many cached tokens each new token sees [R, S] as int32; in an image, all of it.

        Raises ExecutionError if a row's tokens end within an image whose tokens see each other.
        """
        lengths = np.array(self.starts[:, None] + np.arange(1, self.ids.shape[1] + 1), np.int32)
        for row, soft in self.soft_rows():
            start = int(self.starts[row])
            part = soft.within(start, start + int(self.counts[row]))
            if soft.ends is None or part.start == part.stop:
                continue
            if soft.ends[part.stop - 1] > start + self.counts[row]:
                what = "a call ends within an image whose tokens see each other"
                raise ExecutionError(what, f"slot {self.first_slot + row}", "give all tokens of the image in one call")
            lengths[row, soft.places[part] - start] = soft.ends[part]
        return lengths

    def soft_rows(self) -> Iterator[tuple[int, SoftTokens]]:
        """Yield each row whose prompt has vectors, with them."""
        for row in range(len(self.starts)) if self.soft else ():
            soft = self.soft.get(self.first_slot + row)
            if soft is not None:
                yield row, soft

    def fill(self, cache: KvCache) -> None:
        """Let the slots of requests that begin read what an encoder made of them."""
        for row, soft in self.soft_rows():
            if soft.encoded and self.starts[row] == 0 and self.counts[row] > 0:
                cache.fill(self.first_slot + row, soft.encoded)

    def check(self, slots: int, max_length: int) -> None:
        """Raise ExecutionError where a row would write outside its slot."""
        last, size = int(self.starts.max()), self.ids.shape[1]
        if last + size > max_length:
            what = f"a slot of {max_length} tokens cannot hold {last} and {size} more"
            raise ExecutionError(what, "KV cache", "raise `llm.max_sequence_length`, or give fewer tokens")
        if self.rows.stop > slots:
            what = f"slots {self.rows.start} to {self.rows.stop - 1} requested; the model has {slots}"
            raise ExecutionError(what, "KV cache", "open the model with more slots")


class Draw(Protocol):
    """Draws a step's tokens where its network computes, without the host, so that a CUDA graph can hold both."""

    def __call__(self, logits: torch.Tensor, first_slot: int) -> None:
        """Write the tokens of the slots from the first on from logits [R, V] into the decoder's `tokens`."""
        ...


class SequenceCache(Protocol):
    """What is done with cached sequences between calls.

    model: digest of the model that computes them. positions: [slots], how many tokens each slot's states have read.
    """

    model: str
    positions: Ints

    @property
    def pages(self) -> PageTables | None:
        """Which pages hold which slot's tokens; None if each slot has memory of its own."""
        ...

    @property
    def has_slot_memory(self) -> bool:
        """Whether a part of a sequence that is no keys and values lies in its slot."""
        ...

    @property
    def has_states(self) -> bool:
        """Whether layers keep recurrent states, with which a sequence can only go on after all tokens they read."""
        ...

    def copy(self, source: int, target: int, tokens: slice) -> None:
        """Copy cached tokens of slot `source` to slot `target`."""
        ...

    def share(self, source: int, target: int, count: int) -> None:
        """Let `target` begin with the first `count` tokens of `source`."""
        ...

    def mark(self, rows: slice) -> None:
        """Keep the recurrent states of neighbouring slots as they are now, for `rewind`."""
        ...

    def rewind(self, slots: Sequence[int]) -> None:
        """Let the recurrent states of slots be again what they were when the slots were marked."""
        ...

    def form(self, tokens: int) -> CacheForm:
        """Return what a saved sequence of `tokens` tokens is."""
        ...

    def save(self, slot: int, count: int) -> SavedSequence:
        """Return the first `count` tokens of a slot, copied to the host."""
        ...

    def load(self, slot: int, saved: SavedSequence) -> None:
        """Begin a slot with a saved sequence. Raises ExecutionError for what `check` refuses."""
        ...

    def check(self, saved: SavedSequence) -> None:
        """Raise ExecutionError for a sequence of another model or other caches, of too many tokens or too few bytes."""
        ...

    def close(self) -> None:
        """Give the memory back."""
        ...


class DecoderExecution(Protocol):
    """A decoder's network with KV caches of `slots` sequences.

    max_length: T, tokens a slot holds. max_prefill_length: the most new tokens of one row in one
    call. is_asynchronous: `forward` returns before it has computed. takes_ids: the network itself reads token ids, so
    the host need not know them. tokens: [slots] int64, where it computes: what each slot drew last, for ids of -1.
    description: what computes, for people.
    """

    tokens: torch.Tensor
    slots: int
    max_length: int
    max_prefill_length: int
    vocab_size: int
    has_all_logits: bool
    is_asynchronous: bool
    takes_ids: bool
    description: str

    @property
    def cache(self) -> SequenceCache:
        """The memory of the caches."""
        ...

    def forward(self, call: Call, draw: Draw | None = None) -> torch.Tensor:
        """Run new tokens; return fp32 logits [R, V] of each row's last token, or [R, S, V] of all.

        draw: what follows a decode step. The result is valid until the next call. Raises ExecutionError where a row has
        no room.
        """
        ...

    def rows_to_run(self, first_slot: int, rows: int) -> int:
        """Return how many slots from the first on a decode step is to run: `rows`, or some idle ones more."""
        ...

    def layer_seconds(self, call: Call) -> dict[str, float]:
        """Run new tokens; return how long each layer took, in the order they ran."""
        ...

    def close(self) -> None:
        """Give the memory back."""
        ...


class StageExecution(DecoderExecution, Protocol):
    """A DecoderExecution of one rank. Unless it is the last stage of a pipeline, it gives hidden states [R, S, D].

    hidden: the input that takes those of the stage before; None on the first stage.
    """

    hidden: InputSpec | None

    @property
    def cache(self) -> KvCache:
        """The memory of this rank's caches."""
        ...

    def abort(self) -> None:
        """Let go of collectives that wait for a rank that is gone; from any thread."""
        ...
