"""A clock that only the test moves."""

from __future__ import annotations


class VirtualClock:
    """Time passes where somebody sleeps."""

    def __init__(self) -> None:
        self.time = 100.0

    def now(self) -> float:
        return self.time

    def sleep(self, seconds: float) -> None:
        assert seconds > 0
        self.time += seconds
