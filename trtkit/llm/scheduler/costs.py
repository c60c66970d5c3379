"""An engine's counters, and its steps' measured costs, which decide between restoring a cache and recomputing it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

_NEWEST = 0.2
"""Weight of the newest measurement in an average."""
_KEPT = 1 - _NEWEST


class Average:
    """An exponentially weighted mean. value: None before the first measurement."""

    def __init__(self) -> None:
        self.value: float | None = None

    def add(self, value: float) -> None:
        """Add a measurement."""
        self.value = value if self.value is None else _KEPT * self.value + _NEWEST * value

    def add_series(self, first: float, more: float, count: int) -> None:
        """Add `count` measurements, each larger than the last by `more`."""
        kept, rise = _series(count)
        mean = first if self.value is None else self.value
        self.value = kept * mean + (1 - kept) * first + rise * more


@cache
def _series(count: int) -> tuple[float, float]:
    """Return the weight that a mean keeps after `count` measurements, and the multiple of their rise that it gains."""
    kept = _KEPT**count
    return kept, count - (1 - kept) / _NEWEST


class StepCosts:
    """Measured seconds of a decode step and of a prompt token.

    is_late: whether a step's duration is that of the work launched by the step before it, as in overlapped decoding.
    """

    def __init__(self, *, is_late: bool = False) -> None:
        self._is_late = is_late
        self._last = False, 0
        self._decoding = Average()
        self._prompt_token = Average()

    @property
    def prompt_token_s(self) -> float | None:
        """Seconds per prompt token; None before any has been computed."""
        return self._prompt_token.value

    def note_decoding(self, first_s: float, last_s: float, steps: int) -> None:
        """Add a run of pure decode steps whose durations rise linearly from `first_s` to `last_s`."""
        self._decoding.add_series(first_s, (last_s - first_s) / max(1, steps - 1), steps)
        self._last = True, 0

    def note(self, seconds: float, prompt_tokens: int, *, decodes: bool) -> None:
        """Add a step's duration and what it computed."""
        work, self._last = (self._last if self._is_late else (decodes, prompt_tokens)), (decodes, prompt_tokens)
        has_decoded, tokens = work
        if tokens:
            rest = seconds - ((self._decoding.value or 0.0) if has_decoded else 0.0)
            self._prompt_token.add(max(rest, 0.0) / tokens)
        elif has_decoded:
            self._decoding.add(seconds)


@dataclass
class Statistics:
    """An engine's counters.

    prompt_tokens: computed prompt tokens, including those that recurrent states read again after a wrong guess.
    reused_tokens: prompt tokens found in a cache; imported_tokens: those of them that another engine computed.
    restored_tokens: prompt tokens found in host memory; file_tokens: those of them that came from files.

    swaps: preemptions whose cache the host keeps; after the others it is computed again.

    network_calls: calls of the decoder. computed_tokens: tokens that their linear layers computed; padded_tokens: those
    of them that nobody reads, in padding, idle rows and idle tokens.

    synchronous_steps: decode steps that the host waited for before it could launch the next: steps do not overlap, a
    row is a beam, or a user's function must see the logits. discarded_tokens: drawn after a request's end.

    active_blocks, read_blocks, missed_blocks: blocks of neurons, summed over layers and calls, if `llm.sparse_ffn`
    reads active neurons only; missed blocks were active and were not read. row_bytes: bytes of their rows that the
    reference executor read, except rows that `resident_tokens` keeps in memory.
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
