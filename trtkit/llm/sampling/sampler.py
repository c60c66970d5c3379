"""Samples the next token of every row by the settings of its slot."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import torch

from trtkit.llm.sampling.columns import PROCESSORS, WAITS, Columns, SlotState, Use
from trtkit.llm.sampling.draw import Uniform, largest_there
from trtkit.llm.sampling.filters import drawn, filtered
from trtkit.llm.sampling.kernel.steps import KernelSampler
from trtkit.llm.sampling.processors import (
    SamplingStep,
    TokenCounts,
    add_bias,
    bar,
    call_functions,
    follow_guides,
    force,
    penalise_counts,
    penalise_repetition,
)
from trtkit.llm.sampling.sampled import FAILED, NOTHING, Sampled, TokenLogprobs, reason, token_logprobs
from trtkit.runtime.device import start_copy, to_device

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from torch import Tensor

    from trtkit.arrays import Array
    from trtkit.llm.sampling.kernel.steps import KernelDraw
    from trtkit.llm.sampling.settings import Settings
    from trtkit.llm.sequences import Sequences

    _Logprobs = Callable[[], Iterable[tuple[int, int, TokenLogprobs]]]

# Plain numbers: operations on flags cost as much as those on arrays.
_SAMPLE, _COUNTS, _GUIDE, _LOGPROBS = (int(use) for use in (Use.SAMPLE, Use.COUNTS, Use.GUIDE, Use.LOGPROBS))
_PROCESSORS, _WAITS, _FUNCTIONS = int(PROCESSORS), int(WAITS), int(Use.FUNCTIONS)
_NONE = np.zeros(0, np.int64)


@dataclass(frozen=True, eq=False)
class LaunchedDraw:
    """Tokens [R] int64 that are being drawn; FAILED or NOTHING if a row has none. Calling it waits for them."""

    tokens: Tensor
    arrive: Callable[[], Sampled]

    def __call__(self) -> Sampled:
        """Wait for the tokens."""
        return self.arrive()


class Sampler:
    """Samples the next tokens of `sequences`. A row depends on its own slot alone, never on the other rows.

    tokens: [slots], where `draw` leaves tokens on a device; rows are then drawn by the Triton kernel, which is
    interpreted on a CPU. None: they are drawn by NumPy and torch.
    """

    def __init__(self, sequences: Sequences, vocab_size: int, tokens: Tensor | None = None) -> None:
        slots = len(sequences.lengths)
        self._sequences = sequences
        self._columns = Columns(slots)
        self._states: list[SlotState | None] = [None] * slots
        self._counts = TokenCounts(slots, vocab_size)
        self._uniform = Uniform(slots)
        # Settings that any slot has ever used, so that a step need not look for others.
        self._ever = 0
        self._kernel: KernelSampler | None = None
        if tokens is not None:
            self._kernel = KernelSampler(self._columns, self._states, sequences, tokens, vocab_size)

    def admit(self, slot: int, settings: Settings) -> None:
        """Set up a slot whose tokens are in `sequences` already."""
        generated = self._sequences.generated(slot)
        guide = settings.guide.after(generated.tolist()) if settings.guide else None
        self._states[slot] = SlotState.of(settings, guide)
        self._columns.admit(slot, settings)
        self._uniform.admit(slot, settings.seed)
        self._ever |= int(self._columns.uses[slot])
        if self._columns.uses[slot] & _COUNTS:
            self._counts.admit(slot, generated)
        if self._kernel is not None:
            self._kernel.admit(slot)

    def release(self, slot: int) -> None:
        """Clear a slot."""
        self._columns.release(slot)
        self._states[slot] = None

    def copy(self, source: int, target: int) -> None:
        """Copy the state of `source` to `target`."""
        state = self._states[source]
        self._states[target] = state.copy() if state else None
        self._columns.copy(source, target)
        self._uniform.copy(source, target)
        if self._columns.uses[source] & _COUNTS:
            self._counts.copy(source, target)
        if self._kernel is not None:
            self._kernel.copy(source, target)

    def process(self, logits: Tensor, slots: Array, least: int = 1) -> Tensor:
        """Return the scores [R, V] of logits [R, V] after every setting of the rows' slots; -inf cannot be drawn.

        least: how many of the most likely tokens filters must keep.

        Rows that cannot continue (a guide or a function failed) are -inf throughout.
        """
        logits, uses = logits.detach(), self._columns.uses[slots]
        scores, errors = self._processed(logits, slots, uses)
        rows = np.flatnonzero(uses & _SAMPLE)
        if scores is logits:
            scores = logits.clone()
        if rows.size:
            kept = filtered(self._rows(scores, rows), slots[rows], self._columns, least)
            scores[self._place(rows, scores)] = kept
        for row in errors:
            scores[row] = -torch.inf
        return scores

    def sample(self, logits: Tensor, slots: Array) -> Sampled:
        """Return the next token of each row of logits [R, V], fp32."""
        return self.launch(logits, slots)()

    def draws_ahead(self, slots: Array) -> Array:
        """Return which of `slots` [R] can be drawn from their logits alone, whatever the earlier tokens."""
        is_free: Array = (self._columns.uses[slots] & (_PROCESSORS | _LOGPROBS)) == 0
        return is_free

    def draw_ahead(self, logits: Tensor, slots: Array, ahead: Array | None = None) -> Tensor:
        """Return tokens [R] of `slots`, drawn ahead on the device of logits [R, V]; FAILED or NOTHING if there is none.

        Does not wait. ahead: [R], number of tokens before each one that the host does not know; none if None.
        """
        lengths = self._sequences.lengths[slots]
        uniform = np.zeros(len(slots))
        for more in np.unique(ahead) if ahead is not None else (0,):  # a slot keeps the numbers of one block
            rows = slice(None) if ahead is None else ahead == more
            uniform[rows] = self._uniform.at(slots[rows], lengths[rows] + more)
        return self._tokens(logits.detach(), slots, self._columns.uses[slots], uniform)[0]

    def draws(self) -> Sequence[KernelDraw]:
        """Return one of each kind that `draw` may return, to be captured; empty without the kernel."""
        return () if self._kernel is None else self._kernel.draws()

    def draw(self, slots: Array, rows: slice) -> KernelDraw | None:
        """Return what draws tokens of `slots` right after a step of the slots `rows`; None without the kernel.

        The host need not know earlier tokens. Slots that need the host are left to `launch`.
        """
        return None if self._kernel is None else self._kernel.draw(slots, rows, self._uniforms(slots))

    def reads_logits(self, slots: Array) -> bool:
        """Whether `launch` reads the logits of a step that has drawn the tokens of `slots` itself."""
        return bool(int(np.bitwise_or.reduce(self._columns.uses[slots])) & (_WAITS | _LOGPROBS))

    def launch(
        self, logits: Tensor, slots: Array, drawn: Tensor | None = None, places: Array | None = None
    ) -> LaunchedDraw:
        """Start drawing the next token of each row of logits [R, V]; waits for nothing but users' functions.

        drawn: [N], the tokens of the step's own `draw`; rows that it left out are drawn and written there. places: [R],
        the indices of `slots` in it.
        """
        logits, uses = logits.detach(), self._columns.uses[slots]
        if drawn is None:
            tokens, errors = self._tokens(logits, slots, uses)
        else:
            tokens, errors = drawn, {}
            rows = np.flatnonzero(uses & _WAITS)
            if rows.size:
                at = rows if places is None else places[rows]
                tokens[self._place(at, logits)], failed = self._tokens(
                    self._rows(logits, rows), slots[rows], uses[rows]
                )
                errors = {int(rows[row]): error for row, error in failed.items()}
        logprobs = self._start_logprobs(logits, slots, (tokens, places)) if self._ever & _LOGPROBS else None
        copied = start_copy(tokens)
        arrive = copied if places is None else lambda: copied()[places]
        return LaunchedDraw(tokens, partial(self._sampled, slots, errors, arrive, logprobs))

    def waits(self, slots: Array) -> bool:
        """Whether drawing a token of `slots` waits for its logits, since users' functions read them."""
        return bool(self._ever & _FUNCTIONS and int(np.bitwise_or.reduce(self._columns.uses[slots])) & _FUNCTIONS)

    def accept(self, slots: Array, tokens: Array, *, is_counted: bool = False) -> None:
        """Record the tokens [R] with which `slots` [R] continue; the caller appends them to `sequences`.

        is_counted: whether a step's own `draw` has counted them on the device already.
        """
        if self._kernel is not None and not is_counted:
            self._kernel.count(slots, tokens)
        if self._ever & _COUNTS:
            counted = (self._columns.uses[slots] & _COUNTS) > 0
            self._counts.accept(slots[counted], tokens[counted])
        if self._ever & _GUIDE:
            for row in np.flatnonzero(self._columns.uses[slots] & _GUIDE):
                state = self._states[slots[row]]
                if state and state.guide and tokens[row] != FAILED:
                    state.guide.accept(int(tokens[row]))

    def count_drawn(self, slots: Array, tokens: Tensor) -> bool:
        """Count drawn tokens [R] on their device for the kernel's next step; return whether there is a kernel."""
        if self._kernel is not None:
            self._kernel.count_drawn(slots, tokens)
        return self._kernel is not None

    def _processed(self, logits: Tensor, slots: Array, uses: Array) -> tuple[Tensor, dict[int, str]]:
        """Return the scores before temperature and filters, a copy if anything changes, and the rows that failed."""
        if not int(np.bitwise_or.reduce(uses)) & _PROCESSORS:
            return logits, {}
        step = SamplingStep(logits.clone(), slots, uses, self._columns, self._states, self._sequences)
        add_bias(step)
        penalise_repetition(step)
        penalise_counts(step, self._counts)
        bar(step)
        force(step)
        follow_guides(step)
        call_functions(step)
        return step.scores, step.errors

    def _rows(self, scores: Tensor, rows: Array) -> Tensor:
        """Return some rows of scores or tokens; no copy if they are all."""
        return scores if len(rows) == len(scores) else scores[self._place(rows, scores)]

    @staticmethod
    def _place(rows: Array, scores: Tensor) -> Tensor:
        return to_device(rows, scores.device)

    def _tokens(
        self, logits: Tensor, slots: Array, uses: Array, uniform: Array | None = None
    ) -> tuple[Tensor, dict[int, str]]:
        """Return tokens [R] on the device of logits [R, V], FAILED or NOTHING if none, and the rows that failed.

        The host knows all earlier tokens. uniform: [R], random numbers; those of the next tokens if None.
        """
        uniform = self._uniforms(slots) if uniform is None else uniform
        union = int(np.bitwise_or.reduce(uses)) if self._ever else 0
        scores, errors = self._processed(logits, slots, uses) if union & _PROCESSORS else (logits, {})
        if self._kernel is not None:
            return self._kernel.sample(scores, slots, uniform), errors
        rows = np.flatnonzero(uses & _SAMPLE) if union & _SAMPLE else _NONE
        if len(rows) == len(slots):
            return drawn(scores, slots, self._columns, uniform), errors
        tokens = largest_there(scores)
        if rows.size:
            index, chosen = self._place(rows, logits), slots[rows]
            tokens[index] = drawn(scores[index], chosen, self._columns, uniform[rows])
        return tokens, errors

    def _uniforms(self, slots: Array) -> Array:
        """Return the random numbers [R] for the next tokens of `slots`.

        A seed's number depends on the position in the sequence alone, so that an answer continued elsewhere, as part of
        a prompt, is drawn as it would have been here.
        """
        return self._uniform.at(slots, self._sequences.lengths[slots])

    def _sampled(
        self, slots: Array, failures: dict[int, str], arrive: Callable[[], Array], logprobs: _Logprobs | None
    ) -> Sampled:
        """Wait for tokens; give the reason for each row without one."""
        tokens = arrive()
        errors = failures
        if failures or (len(tokens) and tokens.min() < 0):
            failed = np.flatnonzero(tokens < 0).tolist()
            errors = {row: self._reason(int(tokens[row]), int(slots[row])) for row in failed} | failures
            tokens = tokens.copy()
            tokens[list(errors)] = FAILED
        reports = logprobs() if logprobs else ()
        return Sampled(tokens, {row: report.limited(top) for row, top, report in reports if row not in errors}, errors)

    def _reason(self, token: int, slot: int) -> str:
        state = self._states[slot]
        guided = state.settings.params.guided if state else None
        return reason(-math.inf if token == NOTHING else math.nan, int(self._columns.uses[slot]), guided)

    def _start_logprobs(self, logits: Tensor, slots: Array, drawn: tuple[Tensor, Array | None]) -> _Logprobs | None:
        """Start computing the log probabilities of rows that request them: (row, how many, report).

        drawn: tokens [N], and the indices of `slots` among them.
        """
        rows = np.flatnonzero(self._columns.uses[slots] & _LOGPROBS)
        if not rows.size:
            return None
        tops = [self._top(int(slots[row])) for row in rows]
        (tokens, places) = drawn
        at = rows if places is None else places[rows]
        arrive = token_logprobs(self._rows(logits, rows), self._rows(tokens, at), max(tops))
        return lambda: zip(rows.tolist(), tops, arrive(), strict=True)

    def _top(self, slot: int) -> int:
        state = self._states[slot]
        return (state.settings.params.logprobs or 0) if state else 0
