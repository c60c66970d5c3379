"""Stop strings in streamed text."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


class StopStrings:
    """Watches one answer's text for strings that end it, wherever they fall between pieces.

    The answer ends where a stop string is first complete; of several that end there, the longest counts. What may
    still become a stop string is held back. matched: the string that was found. include: keep it in the text.
    """

    def __init__(self, stop: Sequence[str], include: bool = False) -> None:
        self._stop = tuple(stop)
        self._include = include
        self._held = ""
        self.matched: str | None = None

    def add(self, text: str) -> str:
        """Return the text that is certain not to be part of a stop string; nothing after a match."""
        if self.matched is not None:
            return ""
        if not self._stop:
            return text
        text = self._held + text
        match = self._find(text)
        if match is not None:
            start, end = match
            self._held, self.matched = "", text[start:end]
            return text[: end if self._include else start]
        kept = len(text) - self._open(text)
        self._held = text[kept:]
        return text[:kept]

    def finish(self) -> str:
        """Return what was held back: no more text comes to complete it."""
        held, self._held = self._held, ""
        return held

    def _find(self, text: str) -> tuple[int, int] | None:
        """Return start and end of the match that ends first."""
        starts = ((text.find(stop), len(stop)) for stop in self._stop)
        spans = [(start, start + length) for start, length in starts if start >= 0]
        return min(spans, key=lambda span: (span[1], span[0]), default=None)

    def _open(self, text: str) -> int:
        """Return how many last characters may be the beginning of a stop string."""
        longest = max(map(len, self._stop)) - 1
        for length in range(min(longest, len(text)), 0, -1):
            if any(stop.startswith(text[-length:]) for stop in self._stop):
                return length
        return 0
