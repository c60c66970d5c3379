"""Durations of an engine's steps, and measured coefficients of them."""

from __future__ import annotations

import json
import math
from bisect import bisect_left
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Protocol

from trtkit.errors import SimulationError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

Piece = tuple[int, int]
"""New tokens of a prompt, and the number of its cached tokens after them."""
Line = tuple[float, float]
"""Seconds of a decode step without cached tokens, and per cached token of the batch."""


class StepTimes(Protocol):
    """Durations of the network's calls."""

    def decode_lines(self, batch: int, cached: int) -> tuple[Line, Line]:
        """Return two lines in the batch's cached tokens; a decode step takes the larger value.

        batch: rows, idle ones included. cached: where the lines must hold; all others do everywhere, those of stages
        in turn nowhere else.
        """

    def prefill_s(self, rows: int, tokens: int, length: int) -> float:
        """Return the seconds of a call for the next `tokens` of `rows` prompts, after which `length` are cached."""

    @property
    def copy_s_per_token(self) -> float:
        """Seconds to copy a token's cache between device and host."""


class PackedTimes(StepTimes, Protocol):
    """Durations of the calls of a network that takes packed ones."""

    def mixed_s(self, rows: int, cached: int, pieces: Sequence[Piece], idle: int = 0) -> float:
        """Return the seconds of a packed call: `rows` decode, with `cached` tokens in all, others read chunks.

        idle: computed tokens that nobody reads.
        """


def decode_s(lines: tuple[Line, Line], batch: int, cached: int, steps: int) -> float:
    """Return the seconds of decode steps of a batch with `cached` tokens in total, which grow by `batch` per step."""
    (base, slope), (other_base, other_slope) = lines
    one, two = base + slope * cached, other_base + other_slope * cached
    if one < two:
        one, slope, two, other_slope = two, other_slope, one, slope
    last, one_step = steps - 1, slope * batch
    if slope >= other_slope:  # the larger line at the start is the larger at the end
        return steps * one + one_step * last * steps / 2
    two_step = other_slope * batch
    if one + one_step * last >= two + two_step * last:
        return steps * one + one_step * last * steps / 2
    before = int((one - two) / (two_step - one_step)) + 1
    after = steps - before
    tail = after * (two + two_step * before) + two_step * (after - 1) * after / 2
    return before * one + one_step * (before - 1) * before / 2 + tail


def step_s(lines: tuple[Line, Line], cached: int) -> float:
    """Return the seconds of one decode step of a batch with `cached` tokens in total."""
    (base, slope), (other_base, other_slope) = lines
    one, two = base + slope * cached, other_base + other_slope * cached
    return one if one >= two else two


def steps_before(
    within_s: float, lines: tuple[Line, Line], batch: int, cached: int, most: tuple[int, float]
) -> tuple[int, float]:
    """Return how many decode steps begin before `within_s` has passed, at least one, and their seconds.

    The number follows from the sum of an arithmetic series, to within a step, unless the slower line changes meanwhile.
    most: limit on steps, and their seconds, which are at least `within_s`.
    """
    if within_s <= 0:
        return 1, decode_s(lines, batch, cached, 1)
    (base, slope), (other_base, other_slope) = lines
    first_s, more_s = base + slope * cached, slope * batch
    if first_s < other_base + other_slope * cached:
        first_s, more_s = other_base + other_slope * cached, other_slope * batch
    half = first_s - more_s / 2
    guess = int(2 * within_s / (half + math.sqrt(half * half + 2 * more_s * within_s)))
    low, (high, seconds) = 1, most
    for steps in (guess, guess + 1):
        if low <= steps < high:
            if (all_s := decode_s(lines, batch, cached, steps)) < within_s:
                low = steps + 1
            else:
                high, seconds = steps, all_s
    if low < high:
        low = bisect_left(range(high), within_s, low, key=lambda steps: decode_s(lines, batch, cached, steps))
        seconds = decode_s(lines, batch, cached, low)
    return low, seconds


@dataclass(frozen=True)
class MeasuredTimes:
    """Measured coefficients in seconds.

    A decode step takes decode_step_s + decode_row_s per row + decode_cached_token_s per cached token. A prompt call
    takes prefill_call_s + prefill_token_s per new token + prefill_pair_s per pair of a new token and a token cached
    after the call. A copy to or from the host takes copy_token_s per token.
    """

    decode_step_s: float
    decode_row_s: float = 0.0
    decode_cached_token_s: float = 0.0
    prefill_call_s: float = 0.0
    prefill_token_s: float = 0.0
    prefill_pair_s: float = 0.0
    copy_token_s: float = 0.0

    def decode_lines(self, batch: int, cached: int) -> tuple[Line, Line]:  # noqa: ARG002
        """Return the same line twice; see StepTimes."""
        line = self.decode_step_s + self.decode_row_s * batch, self.decode_cached_token_s
        return line, line

    def prefill_s(self, rows: int, tokens: int, length: int) -> float:
        """Return the seconds of a call for prompts; see StepTimes."""
        new = rows * tokens
        return self.prefill_call_s + new * (self.prefill_token_s + self.prefill_pair_s * length)

    def mixed_s(self, rows: int, cached: int, pieces: Sequence[Piece], idle: int = 0) -> float:
        """Return the seconds of a packed call, the sum over its rows and tokens; see StepTimes."""
        call_s = max(self.decode_step_s, self.prefill_call_s) if rows else self.prefill_call_s
        call_s += self.decode_row_s * rows + self.decode_cached_token_s * cached + self.prefill_token_s * idle
        return call_s + sum(self.prefill_s(1, *piece) - self.prefill_call_s for piece in pieces)

    @property
    def copy_s_per_token(self) -> float:
        """Seconds to copy a token's cache; see StepTimes."""
        return self.copy_token_s


def read_times(path: Path) -> MeasuredTimes:
    """Return measured times from a JSON object of coefficients. Raises SimulationError."""
    names = [field.name for field in fields(MeasuredTimes)]
    fix = f"write an object with numbers for {', '.join(names)}"
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        values = {name: float(value) for name, value in data.items()}
        times = MeasuredTimes(**values)
    except (OSError, ValueError, TypeError, AttributeError) as error:
        reason = getattr(error, "strerror", None) or str(error).removeprefix("MeasuredTimes.__init__() ")
        raise SimulationError(f"no step times: {reason}", str(path), fix) from None
    bad = next((name for name, value in values.items() if not 0 <= value < float("inf")), None)
    if bad is not None or times.decode_step_s + times.decode_row_s <= 0:
        what = f"`{bad or 'decode_step_s'}` is {values.get(bad or 'decode_step_s', 0.0):g}"
        raise SimulationError(what, str(path), "give seconds, 0 or more; a decode step takes some")
    return times
