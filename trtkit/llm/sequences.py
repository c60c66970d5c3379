"""The tokens of every slot, as arrays that a step reads all at once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trtkit.llm.soft_tokens import SoftTokens

Ints = np.ndarray[Any, np.dtype[np.int64]]
TOKEN_BITS = 24
"""Bits of a token id; in ids that are compared, an adapter's key is above them."""
KEY_BITS = 39
"""Bits of an adapter's key."""
ONE = np.array(1)
"""For additions to arrays in every step: NumPy adds it in half the time of a Python integer."""
UNKNOWN = -1
"""Stands for a token that the device has drawn and the host does not know yet."""


class AdapterId(NamedTuple):
    """Identity of a LoRA adapter. number: in calls of this process. key: of its content, in any process."""

    number: int
    key: int


NO_ADAPTER = AdapterId(0, 0)


class Sequences:
    """The tokens that each slot has read and generated.

    tokens: [slots, T] int64, the prompt followed by generated tokens. lengths: [slots], tokens known. prompt_lengths:
    [slots], how many of them are the prompt's. soft: vectors in the prompts, by slot. adapters, adapter_keys: [slots],
    number and key of each slot's LoRA adapter, 0 for none. versions: [slots], how often a slot's tokens were replaced;
    otherwise tokens are only appended or cut.
    """

    def __init__(self, slots: int, max_length: int) -> None:
        # One more than the cache holds: the last generated token need not be read again.
        self.tokens: Ints = np.zeros((slots, max_length + 1), np.int64)
        self.lengths: Ints = np.zeros(slots, np.int64)
        self.prompt_lengths: Ints = np.zeros(slots, np.int64)
        self.versions: Ints = np.zeros(slots, np.int64)
        self.adapters: Ints = np.zeros(slots, np.int64)
        self.adapter_keys: Ints = np.zeros(slots, np.int64)
        self.soft: dict[int, SoftTokens] = {}

    def start(
        self,
        slot: int,
        prompt_ids: Ints | Sequence[int],
        generated: Ints | Sequence[int] = (),
        soft: SoftTokens | None = None,
        adapter: AdapterId = NO_ADAPTER,
    ) -> None:
        """Start a sequence. generated: tokens from before a preemption."""
        prompt, length = len(prompt_ids), len(prompt_ids) + len(generated)
        self.tokens[slot, :prompt] = prompt_ids
        if length > prompt:
            self.tokens[slot, prompt:length] = generated
        self.prompt_lengths[slot], self.lengths[slot] = prompt, length
        self.adapters[slot], self.adapter_keys[slot] = adapter
        self._set_soft(slot, soft)

    def append(self, slots: Ints, tokens: Ints | int) -> None:
        """Add one token to each of `slots` [R], or the same to all."""
        lengths = self.lengths[slots]
        self.tokens[slots, lengths] = tokens
        self.lengths[slots] = lengths + 1

    def copy(self, source: int, target: int) -> None:
        """Make `target` the same sequence as `source`."""
        length = self.lengths[source]
        self.tokens[target, :length] = self.tokens[source, :length]
        self.lengths[target], self.prompt_lengths[target] = length, self.prompt_lengths[source]
        self.adapters[target], self.adapter_keys[target] = self.adapters[source], self.adapter_keys[source]
        self._set_soft(target, self.soft.get(source))

    def ids(self, slot: int) -> Ints:
        """Return a view of a slot's tokens."""
        return self.tokens[slot, : self.lengths[slot]]

    def generated(self, slot: int) -> Ints:
        """Return a view of the tokens after the prompt."""
        return self.tokens[slot, self.prompt_lengths[slot] : self.lengths[slot]]

    def known(self, slot: int) -> Ints:
        """Return a copy of the generated tokens that the host knows; unknown ones are always the last."""
        ids = self.generated(slot)
        return ids[ids != UNKNOWN] if ids.size and ids.item(-1) == UNKNOWN else ids.copy()

    def keyed(self, slot: int, ids: Ints) -> Ints:
        """Return tokens of a slot's sequence in the form in which they are compared: those of other adapters differ."""
        return keyed(ids, int(self.adapter_keys[slot]))

    def _set_soft(self, slot: int, soft: SoftTokens | None) -> None:
        self.versions[slot] += 1
        self.soft.pop(slot, None)
        if soft is not None:
            self.soft[slot] = soft


def common_length(one: Ints, other: Ints) -> int:
    """Return the length of the prefix that two sequences share."""
    count = min(len(one), len(other))
    is_other = one[:count] != other[:count]
    return int(is_other.argmax()) if is_other.any() else count


def keyed(ids: Ints, adapter_key: int) -> Ints:
    """Return token ids in the form in which they are compared: no adapter's cache equals another's."""
    return ids + (adapter_key << TOKEN_BITS) if adapter_key else ids
