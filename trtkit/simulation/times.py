"""How long the steps of an engine take: by the roofline of a GPU, or by coefficients that were measured."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Protocol

from trtkit.errors import SimulationError
from trtkit.planning.grids import passed_s
from trtkit.planning.roofline import floor, mixed_floor

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from trtkit.planning.counts import NetworkCounts, Point
    from trtkit.planning.roofline import Roof

Piece = tuple[int, int]
"""New tokens of a prompt, and how many of it are cached after them."""
Line = tuple[float, float]
"""Seconds of a decode step without cached tokens, and for each cached token of the batch."""


class StepTimes(Protocol):
    """What calls of the network take."""

    def decode_lines(self, batch: int) -> tuple[Line, Line]:
        """Return two lines in the batch's cached tokens; a decode step takes the larger. batch: rows, idle ones too."""

    def prefill_s(self, rows: int, tokens: int, length: int) -> float:
        """Return the seconds of a call of `rows` prompts' next `tokens`, after which `length` tokens are cached."""

    def mixed_s(self, rows: int, cached: int, pieces: Sequence[Piece], idle: int = 0) -> float:
        """Return the seconds of a packed call: `rows` decode, with `cached` tokens in all, and others read pieces.

        idle: tokens that are computed besides and that nobody reads.
        """

    @property
    def copy_s_per_token(self) -> float:
        """Seconds to copy a token's cache between device and host."""


def decode_s(lines: tuple[Line, Line], batch: int, cached: int, steps: int) -> float:
    """Return the seconds of decode steps of a batch that has `cached` tokens in all, and `batch` more each step."""
    (base, slope), (other_base, other_slope) = lines
    one, one_step = base + slope * cached, slope * batch
    two, two_step = other_base + other_slope * cached, other_slope * batch
    last = steps - 1
    if one < two:
        one, one_step, two, two_step = two, two_step, one, one_step
    if one + one_step * last >= two + two_step * last:  # the larger at first is the larger at the end
        return steps * one + one_step * last * steps / 2
    before = int((one - two) / (two_step - one_step)) + 1
    after = steps - before
    tail = after * (two + two_step * before) + two_step * (after - 1) * after / 2
    return before * one + one_step * (before - 1) * before / 2 + tail


@dataclass(frozen=True)
class MeasuredTimes:
    """Coefficients in seconds. A decode step: decode_step_s + decode_row_s for each row + decode_cached_token_s for
    each cached token. A call for prompts: prefill_call_s + prefill_token_s for each new token + prefill_pair_s for each
    new token and token that is cached after it. Copies to the host and back: copy_token_s for each token.
    """

    decode_step_s: float
    decode_row_s: float = 0.0
    decode_cached_token_s: float = 0.0
    prefill_call_s: float = 0.0
    prefill_token_s: float = 0.0
    prefill_pair_s: float = 0.0
    copy_token_s: float = 0.0

    def decode_lines(self, batch: int) -> tuple[Line, Line]:
        """Return the same line twice; see StepTimes."""
        line = self.decode_step_s + self.decode_row_s * batch, self.decode_cached_token_s
        return line, line

    def prefill_s(self, rows: int, tokens: int, length: int) -> float:
        """Return the seconds of a call for prompts; see StepTimes."""
        new = rows * tokens
        return self.prefill_call_s + new * (self.prefill_token_s + self.prefill_pair_s * length)

    def mixed_s(self, rows: int, cached: int, pieces: Sequence[Piece], idle: int = 0) -> float:
        """Return the seconds of a packed call, whose rows and tokens add up; see StepTimes."""
        call_s = max(self.decode_step_s, self.prefill_call_s) if rows else self.prefill_call_s
        call_s += self.decode_row_s * rows + self.decode_cached_token_s * cached + self.prefill_token_s * idle
        return call_s + sum(self.prefill_s(1, *piece) - self.prefill_call_s for piece in pieces)

    @property
    def copy_s_per_token(self) -> float:
        """Seconds to copy a token's cache; see StepTimes."""
        return self.copy_token_s


def read_times(path: Path) -> MeasuredTimes:
    """Return measured times from a JSON object of coefficients. Raises SimulationError."""
    names = [each.name for each in fields(MeasuredTimes)]
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


def _decoding(rows: int, cached: int) -> list[Point]:
    """Return the (B, S, T) of rows that decode, as even as can be. cached: tokens of all, before their new ones."""
    shortest, longer = divmod(cached + rows, rows) if rows else (0, 0)
    return [(count, 1, shortest + more) for count, more in ((rows - longer, 0), (longer, 1)) if count]


def no_links(tokens: int, rows: int) -> float:  # noqa: ARG001
    """Return 0: one GPU exchanges nothing."""
    return 0.0


@dataclass(frozen=True)
class RooflineTimes:
    """The least times of a network on its GPUs, divided by the share of their rates that steps are assumed to reach.

    counts: of one GPU, as if it did the layers of all pipeline `stages`. overhead_s: of each call, besides.
    copy_s_per_token: see StepTimes. links_s: what a step of new tokens, and logits of rows, takes to exchange.
    """

    counts: NetworkCounts
    gpu: Roof
    efficiency: float = 1.0
    overhead_s: float = 0.0
    copy_s_per_token: float = 0.0
    stages: int = 1
    links_s: Callable[[int, int], float] = no_links
    _lines: dict[int, tuple[Line, Line]] = field(default_factory=dict, repr=False, compare=False)
    _prefill: dict[tuple[int, int, int], float] = field(default_factory=dict, repr=False, compare=False)

    def decode_lines(self, batch: int) -> tuple[Line, Line]:
        """Return the lines of memory and of compute; see StepTimes. Both are exact: counts are linear in the length."""
        if batch not in self._lines:
            low, high = (floor(self.counts, (batch, 1, length), self.gpu) for length in (1, 1025))
            self._lines[batch] = (
                self._line(batch, low.memory_s, high.memory_s),
                self._line(batch, low.compute_s or 0.0, high.compute_s or 0.0),
            )
        return self._lines[batch]

    def prefill_s(self, rows: int, tokens: int, length: int) -> float:
        """Return the seconds of a call for prompts; see StepTimes."""
        call = rows, tokens, length
        if call not in self._prefill:
            computed_s = passed_s(floor(self.counts, call, self.gpu), self.stages, rows * tokens)
            links_s = self.links_s(rows * tokens, rows)
            self._prefill[call] = (computed_s + links_s) / self.efficiency + self.overhead_s
        return self._prefill[call]

    def mixed_s(self, rows: int, cached: int, pieces: Sequence[Piece], idle: int = 0) -> float:
        """Return the seconds of a packed call, whose rows and pieces read weights together; see StepTimes."""
        parts = [*_decoding(rows, cached), *((1, *piece) for piece in pieces), *([(1, idle, 0)] if idle else [])]
        tokens = sum(batch * new for batch, new, _ in parts)
        links_s = self.links_s(tokens, rows + len(pieces))
        return (mixed_floor(self.counts, parts, self.gpu).seconds + links_s) / self.efficiency + self.overhead_s

    def _line(self, batch: int, at_1: float, at_1025: float) -> Line:
        """Return the line through two steps, of one and of 1,025 cached tokens a row, the new one among them."""
        slope = (at_1025 - at_1) / 1024 / batch / self.efficiency
        return (at_1 + self.links_s(batch, batch)) / self.efficiency + self.overhead_s, slope
