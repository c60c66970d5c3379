"""What the engine's own steps and copies have taken, to choose between keeping a sequence and computing it again."""

from __future__ import annotations

_NEWEST = 0.2
"""The share of the newest measurement in an average."""


class Average:
    """A running mean of measurements, which forgets old ones. value: None before the first."""

    def __init__(self) -> None:
        self.value: float | None = None

    def add(self, value: float) -> None:
        """Take a measurement."""
        self.value = value if self.value is None else (1 - _NEWEST) * self.value + _NEWEST * value


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

    def note(self, seconds: float, prompt_tokens: int, *, decodes: bool) -> None:
        """Take what a step took, and what it computed."""
        work, self._last = (self._last if self._is_late else (decodes, prompt_tokens)), (decodes, prompt_tokens)
        has_decoded, tokens = work
        if tokens:
            rest = seconds - ((self._decoding.value or 0.0) if has_decoded else 0.0)
            self._prompt_token.add(max(rest, 0.0) / tokens)
        elif has_decoded:
            self._decoding.add(seconds)
