"""The next token of every row, each by the settings of its own slot."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from trtkit.runtime.device import to_device
from trtkit.runtime.sampling.columns import PROCESSORS, Columns, SlotState, Use
from trtkit.runtime.sampling.draw import Uniform, largest, largest_there
from trtkit.runtime.sampling.failures import reason
from trtkit.runtime.sampling.logprobs import token_logprobs
from trtkit.runtime.sampling.processors.bars import bar, follow_guides, force
from trtkit.runtime.sampling.processors.functions import call_functions
from trtkit.runtime.sampling.processors.penalties import Counts, add_bias, penalise_counts, penalise_repetition
from trtkit.runtime.sampling.processors.step import Step
from trtkit.runtime.sampling.rows import drawn, filtered
from trtkit.runtime.sampling.sampled import FAILED, Sampled, TokenLogprobs

if TYPE_CHECKING:
    from torch import Tensor

    from trtkit.runtime.sampling.settings import Settings
    from trtkit.runtime.sequences import Sequences

    Array = np.ndarray[Any, Any]

# Plain numbers: operations of flags cost as much as those of arrays.
_SAMPLE, _COUNTS, _GUIDE, _LOGPROBS = (int(use) for use in (Use.SAMPLE, Use.COUNTS, Use.GUIDE, Use.LOGPROBS))
_PROCESSORS = int(PROCESSORS)
_NEEDS_HOST = _PROCESSORS | _LOGPROBS
_NONE = np.zeros(0, np.int64)


class Sampler:
    """What the slots of `sequences` go on with. A row depends on its own slot alone, whatever other rows there are."""

    def __init__(self, sequences: Sequences, vocab_size: int) -> None:
        slots = len(sequences.lengths)
        self._sequences = sequences
        self._columns = Columns(slots)
        self._states: list[SlotState | None] = [None] * slots
        self._counts = Counts(slots, vocab_size)
        self._uniform = Uniform(slots)
        # Settings that any slot has ever used: a step need not look for others.
        self._ever = 0

    def admit(self, slot: int, settings: Settings) -> None:
        """Take a slot whose tokens are in `sequences` already."""
        generated = self._sequences.generated(slot)
        guide = settings.guide.after(generated.tolist()) if settings.guide else None
        self._states[slot] = SlotState.of(settings, guide)
        self._columns.admit(slot, settings)
        self._uniform.admit(slot, settings.seed)
        self._ever |= int(self._columns.uses[slot])
        if self._columns.uses[slot] & _COUNTS:
            self._counts.admit(slot, generated)

    def release(self, slot: int) -> None:
        """Forget a slot."""
        self._columns.release(slot)
        self._states[slot] = None

    def copy(self, source: int, target: int) -> None:
        """Make `target` go on as `source` would."""
        state = self._states[source]
        self._states[target] = state.copy() if state else None
        self._columns.copy(source, target)
        self._uniform.copy(source, target)
        if self._columns.uses[source] & _COUNTS:
            self._counts.copy(source, target)

    def process(self, logits: Tensor, slots: Array) -> Tensor:
        """Return the scores [R, V] of logits [R, V] after every setting of the rows' slots; -inf cannot be drawn.

        Rows that cannot go on (a guide or a function that failed) are -inf throughout.
        """
        logits, uses = logits.detach(), self._columns.uses[slots]
        scores, errors = self._processed(logits, slots, uses)
        rows = np.flatnonzero(uses & _SAMPLE)
        if scores is logits:
            scores = logits.clone()
        if rows.size:
            scores[self._place(rows, scores)] = filtered(self._rows(scores, rows), slots[rows], self._columns)
        for row in errors:
            scores[row] = -torch.inf
        return scores

    def sample(self, logits: Tensor, slots: Array) -> Sampled:
        """Return the next token of each row of logits [R, V], fp32."""
        logits = logits.detach()
        uses = self._columns.uses[slots]
        union = int(np.bitwise_or.reduce(uses)) if self._ever else 0
        scores, errors = self._processed(logits, slots, uses) if union & _PROCESSORS else (logits, {})
        rows = np.flatnonzero(uses & _SAMPLE) if union & _SAMPLE else _NONE
        if len(rows) < len(slots):
            tokens, best = largest(scores)
            bad = ~np.isfinite(best)
        else:
            tokens, bad = np.zeros(len(slots), np.int64), np.zeros(len(slots), np.bool_)
        if len(rows):
            bad[rows] = self._draw(scores, slots, rows, tokens)
        if bad.any():
            for row in np.flatnonzero(bad).tolist():
                errors.setdefault(row, self._reason(scores[row], int(slots[row])))
        return self._sampled(logits, slots, tokens, errors)

    def can_launch(self, slots: Array) -> bool:
        """Whether the next tokens of `slots` follow from their logits and numbers, and from no token before them."""
        return not int(np.bitwise_or.reduce(self._columns.uses[slots])) & _NEEDS_HOST

    def launch(self, logits: Tensor, slots: Array) -> Tensor:
        """Return the next token of each row [R] int64, where the logits [R, V] are; FAILED or NOTHING if there is none.

        Tokens are those of `sample`. For slots that `can_launch`; the host need not know them yet to launch the next.
        """
        logits = logits.detach()
        tokens, failed = largest_there(logits)
        rows = np.flatnonzero(self._columns.uses[slots] & _SAMPLE)
        if rows.size:
            ids, end = self._drawn(logits, slots, rows)
            place = self._place(rows, logits)
            tokens[place] = torch.where(end > 0, ids, failed[place])
        return tokens

    def accept(self, slots: Array, tokens: Array) -> None:
        """Note the tokens [R] that `slots` [R] go on with; the caller appends them to `sequences`."""
        if self._ever & _COUNTS:
            counted = (self._columns.uses[slots] & _COUNTS) > 0
            self._counts.accept(slots[counted], tokens[counted])
        if self._ever & _GUIDE:
            for row in np.flatnonzero(self._columns.uses[slots] & _GUIDE):
                state = self._states[slots[row]]
                if state and state.guide and tokens[row] != FAILED:
                    state.guide.accept(int(tokens[row]))

    def _processed(self, logits: Tensor, slots: Array, uses: Array) -> tuple[Tensor, dict[int, str]]:
        """Return the scores before temperature and filters, a copy where anything changes, and rows that failed."""
        if not int(np.bitwise_or.reduce(uses)) & _PROCESSORS:
            return logits, {}
        step = Step(logits.clone(), slots, uses, self._columns, self._states, self._sequences)
        add_bias(step)
        penalise_repetition(step)
        penalise_counts(step, self._counts)
        bar(step)
        force(step)
        follow_guides(step)
        call_functions(step)
        return step.scores, step.errors

    def _rows(self, scores: Tensor, rows: Array) -> Tensor:
        """Return some rows of scores, without a copy if they are all."""
        return scores if len(rows) == len(scores) else scores[self._place(rows, scores)]

    @staticmethod
    def _place(rows: Array, scores: Tensor) -> Tensor:
        return to_device(rows, scores.device)

    def _draw(self, scores: Tensor, slots: Array, rows: Array, tokens: Array) -> Array:
        """Write the tokens that `rows` draw; return [r], which of them have nothing to draw from."""
        ids, end = self._drawn(scores, slots, rows)
        tokens[rows] = ids.cpu().numpy()
        return ~(end > 0).cpu().numpy()

    def _drawn(self, scores: Tensor, slots: Array, rows: Array) -> tuple[Tensor, Tensor]:
        """Return the tokens that `rows` draw, and the ends of their CDFs: 0 or NaN for no token."""
        chosen = slots[rows]
        steps = self._sequences.lengths[chosen] - self._sequences.prompt_lengths[chosen]
        return drawn(self._rows(scores, rows), chosen, self._columns, self._uniform.at(chosen, steps))

    def _reason(self, scores: Tensor, slot: int) -> str:
        state = self._states[slot]
        guided = state.settings.params.guided if state else None
        return reason(float(scores.max()), int(self._columns.uses[slot]), guided)

    def _sampled(self, logits: Tensor, slots: Array, tokens: Array, failures: dict[int, str]) -> Sampled:
        errors: list[str | None] = [None] * len(slots)
        for row, error in failures.items():
            errors[row], tokens[row] = error, FAILED
        logprobs: list[TokenLogprobs | None] = [None] * len(slots)
        if self._ever & _LOGPROBS:
            self._report(logits, slots, tokens, logprobs)
        return Sampled(tokens, logprobs, errors)

    def _report(self, logits: Tensor, slots: Array, tokens: Array, logprobs: list[TokenLogprobs | None]) -> None:
        """Write the log probabilities of rows that ask for them."""
        asking = np.flatnonzero((self._columns.uses[slots] & _LOGPROBS > 0) & (tokens != FAILED))
        if not asking.size:
            return
        tops = [self._top(int(slots[row])) for row in asking]
        reports = token_logprobs(logits[self._place(asking, logits)], tokens[asking], max(tops))
        for row, top, report in zip(asking.tolist(), tops, reports, strict=True):
            logprobs[row] = report.limited(top)

    def _top(self, slot: int) -> int:
        state = self._states[slot]
        return (state.settings.params.logprobs or 0) if state else 0
