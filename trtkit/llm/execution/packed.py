"""One call of a packed network: some slots decode, with guesses, while others read prompt chunks."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, TypeVar

import numpy as np
import torch

from trtkit.llm.execution.cached_places import NewTokens
from trtkit.llm.execution.call import Call
from trtkit.network.input_spec import ADAPTER_IDS, DECODE_POSITION_IDS, LOGIT_INDEX, PROMPT, PROMPT_PLACES, kv_window
from trtkit.runtime.device import to_device

if TYPE_CHECKING:
    from collections.abc import Callable

    from trtkit.llm.sequences import Ints

_HOST = torch.device("cpu")


@dataclass(frozen=True, eq=False)
class PackedCall:
    """New tokens of all rows in sequence: those of `decode`, then those of `prompts` without padding.

    decode: consecutive slots, each with a token and guesses of the next ones, padded to equal length. prompts: other
    slots with any number of tokens; a row without tokens is idle. Their slots are consecutive, too, unless slots hold
    nothing but pages. logit_index: [N], positions of the tokens whose logits the network returns. idle: unread tokens
    at the end, which round the call up to a size that suits the kernels. hidden: [T, D], output of the previous
    pipeline stage for all tokens but idle ones; None on the first stage.
    """

    decode: Call
    prompts: Call
    logit_index: Ints
    idle: int = 0
    hidden: torch.Tensor | None = None

    @classmethod
    def of(cls, call: Call, *, has_all_logits: bool) -> PackedCall:
        """Return a plain call as a packed one: its rows read prompts if they have several tokens and are not trees.

        Logits are of each row's last token, or of all tokens; see `shaped`.
        """
        hidden = None if call.hidden is None else call.hidden.flatten(0, 1)
        if not call.reads_prompts:
            return cls(call, no_rows(), np.arange(call.ids.size), hidden=hidden)
        packed = cls(no_rows(), replace(call, scattered=call.slots), np.arange(int(call.counts.sum())))
        if hidden is not None:
            packed = replace(packed, hidden=hidden[to_device(packed.places, hidden.device)])
        return packed if has_all_logits else replace(packed, logit_index=packed.last_tokens)

    def placed(self, place: Callable[[Call], Call]) -> PackedCall:
        """Return the call with `place` applied to `decode` and `prompts`, unless they are empty."""
        decode, prompts = (place(call) if len(call.starts) else call for call in (self.decode, self.prompts))
        return replace(self, decode=decode, prompts=prompts)

    @property
    def rows(self) -> int:
        """Number of decoding rows."""
        return len(self.decode.starts)

    @property
    def decoding_tokens(self) -> int:
        """Number of their tokens, with padding; they come before the prompts' tokens."""
        return self.decode.ids.size

    @property
    def tokens(self) -> int:
        """T, tokens that all layers but attention compute."""
        return self.decoding_tokens + len(self.places) + self.idle

    @property
    def token_shape(self) -> tuple[int, ...]:
        """Shape [T] of the token axis in hidden states that pipeline stages exchange."""
        return (self.tokens,)

    @property
    def used_tokens(self) -> int:
        """Number of tokens that are neither padding nor idle."""
        return int(self.decode.counts.sum()) + len(self.places)

    @property
    def last_tokens(self) -> Ints:
        """Index of the last token of each row of prompts among all tokens, [B]; arbitrary for idle rows."""
        last: Ints = np.maximum(self.decoding_tokens + np.cumsum(self.prompts.counts) - 1, 0)
        return last

    @cached_property
    def places(self) -> Ints:
        """Index `row * S + column` of each prompt token in padded rows, [P]."""
        prompts = self.prompts
        return np.flatnonzero(np.arange(prompts.ids.shape[1]) < prompts.counts[:, None])

    def prompt_slots(self, *, are_neighbors: bool) -> slice:
        """Return the slots of prompts as a slice of the slots' memory; arbitrary if slots hold nothing but pages.

        are_neighbors: whether the prompts' slots must be consecutive.
        """
        slots = self.prompts.slots
        first = int(slots[0]) if slots.size else 0
        assert not are_neighbors or np.array_equal(slots, np.arange(first, first + len(slots)))
        return slice(first, first + len(slots))

    @property
    def page_tokens(self) -> int | None:
        """Tokens per page; None if caches are linear."""
        return next((call.pages.page_tokens for call in (self.decode, self.prompts) if call.pages is not None), None)

    def prompt_window(self, max_length: int) -> int:
        """Return how many cached tokens rows of prompts read in addition to new ones; whole pages if paged."""
        window = kv_window(max(1, int(self.prompts.starts.max(initial=0))), max_length)
        page = self.page_tokens or 1
        return -(-window // page) * page

    def of_tokens(self, decoding: np.ndarray, prompts: np.ndarray) -> np.ndarray:
        """Return per-token values [T, 1, ...] from padded arrays [R, S, ...] of both kinds; 0 for idle tokens."""
        flat = prompts.reshape(-1, *prompts.shape[2:])[self.places]
        idle = np.zeros((self.idle, *flat.shape[1:]), flat.dtype)
        return np.concatenate([decoding.reshape(-1, *decoding.shape[2:]), flat, idle])[:, None]

    def vectors(self, decoding: torch.Tensor, prompts: torch.Tensor) -> torch.Tensor:
        """Return vectors [T, 1, D] from padded ones [R, S, D] of both kinds; zeros for idle tokens."""
        flat = prompts.flatten(0, 1)[torch.from_numpy(self.places)]
        return torch.cat([decoding.flatten(0, 1), flat, flat.new_zeros(self.idle, flat.shape[1])])[:, None]

    def feed(self, max_length: int) -> dict[str, np.ndarray]:
        """Return the network's inputs except caches, as int32 arrays. max_length: T, tokens per slot."""
        decode, prompts, of_all = self.decode, self.prompts, self.places
        rows, width = prompts.ids.shape
        numbers = np.zeros(rows * width, np.int64)
        numbers[of_all] = self.decoding_tokens + np.arange(len(of_all))
        feed = {
            "input_ids": self.of_tokens(decode.ids, prompts.ids),
            "position_ids": self.of_tokens(decode.position_ids, prompts.position_ids),
            ADAPTER_IDS: np.r_[
                decode.adapter_ids.repeat(decode.ids.shape[1]),
                prompts.adapter_ids.repeat(prompts.counts),
                np.zeros(self.idle, np.int64),
            ],
            DECODE_POSITION_IDS: decode.position_ids,
            "branch_ends": decode.branch_ends,
            "write_indices": decode.starts,
            "kv_lengths": np.maximum(decode.starts + decode.counts, 1),
            "token_counts": decode.counts,
            f"{PROMPT}tokens": numbers.reshape(rows, width),
            PROMPT_PLACES: np.r_[of_all, np.zeros(self.idle, np.int64)],
            f"{PROMPT}write_indices": prompts.starts,
            f"{PROMPT}kv_lengths": np.maximum(prompts.starts + prompts.counts, 1),
            f"{PROMPT}token_counts": prompts.counts,
            f"{PROMPT}position_ids": prompts.position_ids,
            LOGIT_INDEX: self.logit_index,
        }
        window = self.prompt_window(max_length)
        feed[f"{PROMPT}key_positions"] = np.arange(window)
        if self.page_tokens is not None:
            columns = window // self.page_tokens
            feed["page_table"] = np.zeros((0, 1)) if decode.pages is None else decode.pages.table
            table = np.zeros((0, columns)) if prompts.pages is None else prompts.pages.table[:, :columns]
            feed[f"{PROMPT}page_table"] = table
        return {name: np.ascontiguousarray(value, np.int32) for name, value in feed.items()}

    def rope_position_ids(self) -> np.ndarray:
        """Return M-RoPE's positions [3, T, 1] as int32."""
        both = (call.rope_position_ids().transpose(1, 2, 0) for call in (self.decode, self.prompts))
        return np.ascontiguousarray(self.of_tokens(*both).transpose(2, 0, 1))

    def new_tokens(self, device: torch.device = _HOST) -> NewTokens:
        """Return where the new keys and values of prompts are written, token by token."""
        prompts, width = self.prompts, self.prompts.ids.shape[1]
        row, column = self.places // width, self.places % width
        positions, table = prompts.starts[row] + column, None
        if prompts.pages is not None:
            table = prompts.pages.table[row, positions // prompts.pages.page_tokens][:, None]
        slots, starts = (to_device(array, device) for array in (prompts.slots[row], positions))
        pages = None if table is None else to_device(table, device)
        return NewTokens(slots, starts, torch.ones_like(starts), pages)

    def shaped(self, logits: torch.Tensor, *, has_all_logits: bool) -> torch.Tensor:
        """Return the logits of a plain call in the shape of `DecoderExecution.forward`.

        [R, V], or [R, S, V] of all tokens.
        """
        if not has_all_logits:
            return logits
        return self._of_decoding(logits) if self.rows else self.by_row(logits)[1]

    def by_row(self, vectors: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return vectors [T, C] of all tokens as [R, S, C], for decoding rows (a view) and for rows of prompts.

        Padding of prompts is zero.
        """
        count, size = self.decoding_tokens, vectors.shape[-1]
        rows, width = self.prompts.ids.shape
        of_prompts = vectors.new_zeros(rows * width, size)
        of_prompts[to_device(self.places, vectors.device)] = vectors[count : count + len(self.places)]
        return self._of_decoding(vectors), of_prompts.view(rows, width, size)

    def _of_decoding(self, vectors: torch.Tensor) -> torch.Tensor:
        return vectors[: self.decoding_tokens].view(*self.decode.ids.shape, vectors.shape[-1])


AnyCall = TypeVar("AnyCall", Call, PackedCall)
"""A plain or a packed call."""


def no_rows(width: int = 1) -> Call:
    """Return a call without rows."""
    none: Ints = np.zeros(0, np.int64)
    return Call(0, np.zeros((0, width), np.int64), none, none, scattered=none)
