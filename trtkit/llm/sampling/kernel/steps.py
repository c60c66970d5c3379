"""Steps that the kernel samples right after the network: what it reads of each slot lies where the logits are."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import torch

from trtkit.llm.sampling.columns import WAITS, Use
from trtkit.llm.sampling.draw import largest_there
from trtkit.llm.sampling.kernel import Tables, Workspace, numbers_of, sample, tables_of, workspace
from trtkit.runtime.device import staged, to_device

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trtkit.arrays import Array
    from trtkit.llm.sampling.columns import Columns, SlotState
    from trtkit.llm.sequences import Sequences

_UNIFORM, _LEFT_OUT, _LARGEST = -1, -1.0, 1.0  # the column of uniform numbers, and those that draw nothing
_WAITS, _SAMPLE = int(WAITS), int(Use.SAMPLE)
_COUNTS, _BARS = int(Use.REPETITION | Use.COUNTS), int(Use.BAD_WORDS | Use.MIN_TOKENS)
_READ = int(Use.SAMPLE | Use.BIAS) | _COUNTS | _BARS


@dataclass(frozen=True, eq=False)
class KernelDraw:
    """Draws the tokens [slots] of a step from its logits. numbers, memory: of all slots; None: the largest logits."""

    tokens: torch.Tensor
    numbers: torch.Tensor | None
    tables: Tables
    memory: Workspace | None

    def __call__(self, logits: torch.Tensor, slots: torch.Tensor) -> None:
        """Write the tokens of slots [R] from logits [R, V], without the host."""
        if self.numbers is None or self.memory is None:
            self.tokens[slots.long()] = largest_there(logits)
        else:
            sample(logits, self.numbers, self.tables, (self.tokens, self.memory), slots.int().contiguous())


class KernelSampler:
    """Keeps the settings of slots on the device of `tokens` [slots], where steps leave the tokens they draw.

    Rows that need the tokens before theirs on the host are left out of such steps. Tables are allocated when the first
    slot draws; they stay where they are, for CUDA graphs hold their addresses.
    """

    def __init__(
        self,
        columns: Columns,
        states: Sequence[SlotState | None],
        sequences: Sequences,
        tokens: torch.Tensor,
        vocab_size: int,
    ) -> None:
        self._columns, self._states, self._sequences, self._tokens = columns, states, sequences, tokens
        self._vocab_size, self._slots, self._device = vocab_size, len(tokens), tokens.device
        self._numbers = numbers_of(columns, np.arange(self._slots), np.zeros(self._slots))
        self._tables = Tables()
        numbers = to_device(self._numbers.copy(), self._device)
        self._largest = KernelDraw(tokens, None, self._tables, None)
        self._draw = KernelDraw(tokens, numbers, self._tables, None)
        self._is_early = np.zeros(self._slots, np.bool_)

    def admit(self, slot: int) -> None:
        """Take a slot whose settings and tokens are known."""
        self._numbers[slot] = numbers_of(self._columns, np.array([slot]), np.zeros(1))[0]
        uses, state = int(self._columns.uses[slot]), self._states[slot]
        assert state is not None
        uses = 0 if uses & _WAITS else uses
        self._is_early[slot] = False
        if uses & _READ:
            self.allocate()
        for table, neutral in zip(self._tables, (0, 0, -1), strict=True):
            if table is not None:
                table[slot] = neutral
        if uses & Use.BIAS and self._tables.bias is not None:
            self._tables.bias[slot, self._there(state.bias_ids)] = self._there(state.bias_values)
        if uses & _COUNTS and self._tables.counts is not None:
            generated = self._sequences.generated(slot)
            prompt = self._sequences.ids(slot)[: len(self._sequences.ids(slot)) - len(generated)]
            self._tables.counts[slot, self._there(self._known(prompt))] = 1
            self.count(np.full(len(generated), slot), generated)
        if uses & _BARS:
            self._bar(slot, state)

    def copy(self, source: int, target: int) -> None:
        """Make what is kept of `target` that of `source`."""
        self._numbers[target], self._is_early[target] = self._numbers[source], self._is_early[source]
        for table in self._tables:
            if table is not None:
                table[target] = table[source]

    def count(self, slots: Array, tokens: Array) -> None:
        """Count tokens [R] that the host has drawn for `slots` [R], for penalties."""
        counted = (self._columns.uses[slots] & _COUNTS > 0) & (tokens >= 0) & (tokens < self._vocab_size)
        if self._tables.counts is not None and counted.any():
            cells = self._there(slots[counted]), self._there(tokens[counted])
            twice = torch.full(cells[0].shape, 2, dtype=torch.int32, device=self._device)
            self._tables.counts.index_put_(cells, twice, accumulate=True)

    def count_drawn(self, slots: Array, tokens: torch.Tensor) -> None:
        """Count tokens [R], which are on the device and below 0 if there is none, for penalties."""
        rows = np.flatnonzero(self._columns.uses[slots] & _COUNTS)
        if self._tables.counts is not None and rows.size:
            drawn = tokens[self._there(rows)]
            cells = self._there(slots[rows]), drawn.clamp(min=0)
            self._tables.counts.index_put_(cells, torch.where(drawn < 0, 0, 2).int(), accumulate=True)

    def draw(self, slots: Array, rows: slice, uniform: Array) -> KernelDraw:
        """Return what draws the tokens of `slots` [R] in a step of the slots `rows`, with uniform numbers [R]."""
        uses = self._columns.uses[slots]
        is_free = (uses & _WAITS) == 0
        slots, uses = slots[is_free], uses[is_free]
        if not int(np.bitwise_or.reduce(uses)) & _READ:
            return self._largest
        self._end_bars(slots[uses & int(Use.MIN_TOKENS) > 0])
        self.allocate()
        numbers = self._numbers[rows].copy()
        numbers[:, _UNIFORM] = _LEFT_OUT
        numbers[slots - rows.start, _UNIFORM] = np.where(uses & _SAMPLE, uniform[is_free], _LARGEST)
        assert self._draw.numbers is not None
        self._draw.numbers[rows].copy_(staged(numbers, self._device), non_blocking=True)
        return self._draw

    def sample(self, scores: torch.Tensor, slots: Array, uniform: Array) -> torch.Tensor:
        """Return the tokens [R] of `slots` from scores [R, V] after all but temperature and filters."""
        numbers = self._numbers[slots]
        numbers[:, _UNIFORM] = np.where(self._columns.uses[slots] & _SAMPLE, uniform, _LARGEST)
        return sample(scores, self._there(numbers))

    def allocate(self) -> None:
        """Take the memory that draws need, once."""
        if self._draw.memory is None:
            self._tables = tables_of(self._slots, self._vocab_size, self._device)
            memory = workspace(self._slots, self._vocab_size, self._device)
            self._draw = replace(self._draw, tables=self._tables, memory=memory)

    def draws(self) -> tuple[KernelDraw, KernelDraw]:
        """Return the two draws that steps have, none of which draws anything as it is."""
        self.allocate()
        assert self._draw.numbers is not None
        self._draw.numbers[:, _UNIFORM] = _LEFT_OUT
        return self._largest, self._draw

    def _end_bars(self, slots: Array) -> None:
        """Allow the ends of sequences that have reached their `min_tokens`."""
        steps = self._sequences.lengths[slots] - self._sequences.prompt_lengths[slots]
        for slot in slots[self._is_early[slots] & (steps >= self._columns["min_tokens"][slots])].tolist():
            state = self._states[slot]
            assert state is not None
            self._bar(slot, state)

    def _bar(self, slot: int, state: SlotState) -> None:
        """Bar single bad words, and ends that come too early."""
        steps = len(self._sequences.generated(slot))
        self._is_early[slot] = steps < int(self._columns["min_tokens"][slot])
        barred = np.append(state.bad_words.single, state.stop_ids if self._is_early[slot] else ()).astype(np.int64)
        assert self._tables.allowed is not None
        bits = np.ones(32 * self._tables.allowed.shape[1], np.uint8)
        bits[self._known(barred)] = 0
        self._tables.allowed[slot] = self._there(np.packbits(bits, bitorder="little").view(np.int32))

    def _known(self, tokens: Array) -> Array:
        """Return the tokens that there are logits of."""
        return tokens[tokens < self._vocab_size]

    def _there(self, values: Array) -> torch.Tensor:
        return to_device(np.ascontiguousarray(values), self._device)
