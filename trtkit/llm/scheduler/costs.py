"""What an engine has done, in counts, and what its steps have taken, to choose between keeping and computing again."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

_NEWEST = 0.2
"""The share of the newest measurement in an average."""
_KEPT = 1 - _NEWEST


class Average:
    """A running mean of measurements, which forgets old ones. value: None before the first."""

    def __init__(self) -> None:
        self.value: float | None = None

    def add(self, value: float) -> None:
        """Take a measurement."""
        self.value = value if self.value is None else _KEPT * self.value + _NEWEST * value

    def add_series(self, first: float, more: float, count: int) -> None:
        """Take `count` measurements, each by `more` larger than the one before it."""
        kept, rise = _series(count)
        mean = first if self.value is None else self.value
        self.value = kept * mean + (1 - kept) * first + rise * more


@cache
def _series(count: int) -> tuple[float, float]:
    """Return what `count` measurements leave of a mean, and how many of their differences the mean gains."""
    kept = _KEPT**count
    return kept, count - (1 - kept) / _NEWEST


class StepCosts:
    """Seconds of a step that decodes, and of a prompt's token.

    is_late: whether a step waits for what the one before it has launched, as where steps overlap.
    """

    def __init__(self, *, is_late: bool = False) -> None:
        self._is_late = is_late
        self._last = False, 0
        self._decoding = Average()
        self._prompt_token = Average()

    @property
    def prompt_token_s(self) -> float | None:
        """Seconds that it takes to compute a token of a prompt; None if none has been computed."""
        return self._prompt_token.value

    def note_decoding(self, first_s: float, last_s: float, steps: int) -> None:
        """Take what steps that only decode took, each a little longer than the one before it."""
        self._decoding.add_series(first_s, (last_s - first_s) / max(1, steps - 1), steps)
        self._last = True, 0

    def note(self, seconds: float, prompt_tokens: int, *, decodes: bool) -> None:
        """Take what a step took, and what it computed."""
        work, self._last = (self._last if self._is_late else (decodes, prompt_tokens)), (decodes, prompt_tokens)
        has_decoded, tokens = work
        if tokens:
            rest = seconds - ((self._decoding.value or 0.0) if has_decoded else 0.0)
            self._prompt_token.add(max(rest, 0.0) / tokens)
        elif has_decoded:
            self._decoding.add(seconds)


@dataclass
class Statistics:
    """What an engine has done. prompt_tokens: computed, and those that states read again after a wrong guess;
    reused_tokens: of prompts, found in a cache; imported_tokens: those of them that another engine computed.

    restored_tokens: of prompts, those that were found in host memory; file_tokens: those of them that files had.

    swaps: preemptions whose sequence the host keeps; others are computed again.

    network_calls: of the decoder; computed_tokens: of its linear layers in them; padded_tokens: those of these that
    nobody reads: padding of rows, and rows and tokens that are idle.

    synchronous_steps: decoding steps that the host waited for before it could launch the next: the engine does not
    overlap, or a row is a beam, or a user's function has to see its logits. discarded_tokens: drawn after an end.

    active_blocks, read_blocks, missed_blocks: of neurons, summed over layers and calls, if `llm.sparse_ffn` lets steps
    read active ones only; missed ones are active and were not read.
    row_bytes: of their rows, read by the reference executor, but for rows that `resident_tokens` keeps in memory.
    """

    steps: int = 0
    network_calls: int = 0
    computed_tokens: int = 0
    padded_tokens: int = 0
    prompt_tokens: int = 0
    reused_tokens: int = 0
    imported_tokens: int = 0
    restored_tokens: int = 0
    file_tokens: int = 0
    generated_tokens: int = 0
    drafted_tokens: int = 0
    accepted_tokens: int = 0
    preemptions: int = 0
    swaps: int = 0
    synchronous_steps: int = 0
    discarded_tokens: int = 0
    active_blocks: int = 0
    read_blocks: int = 0
    missed_blocks: int = 0
    row_bytes: int = 0
