"""The link between a device and its host as numbers: the rate of copies, and when pending ones end."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

STAGED_BYTES = 128 << 20
"""Device memory in which saves are staged: as much can be saved at once without any step waiting."""
_SAVE_SHARE = 0.5  # share of the link's time for background saves
_LINK_SECONDS_PER_BYTE = 1 / 25e9  # PCIe 4.0 x16
_NEWEST, _FORGOTTEN = 0.3, 0.1


class CopyRate:
    """A running mean that forgets: each `forget` moves it towards the link's nominal rate, so one slow copy fades.

    measured: the mean itself.
    """

    def __init__(self) -> None:
        self.seconds_per_byte = self.measured = _LINK_SECONDS_PER_BYTE
        self._is_measured = False

    def note(self, seconds: float, size_bytes: int) -> None:
        """Add a copy's duration."""
        newest, share = seconds / size_bytes, _NEWEST if self._is_measured else 1.0
        self.seconds_per_byte += share * (newest - self.seconds_per_byte)
        self.measured += share * (newest - self.measured)
        self._is_measured = True

    def forget(self) -> None:
        """Record that a copy was skipped, so that nothing was measured."""
        self.seconds_per_byte += _FORGOTTEN * (_LINK_SECONDS_PER_BYTE - self.seconds_per_byte)


class Link:
    """A schedule of copies, one after the other, each as long as earlier ones suggest.

    is_background: whether steps run meanwhile. If not, copies are synchronous and nothing is planned here.
    staged_bytes: device memory in which saves are staged.
    """

    def __init__(self, clock: Callable[[], float], *, is_background: bool) -> None:
        self.rate, self.is_background = CopyRate(), is_background
        self.staged_bytes, self._clock = STAGED_BYTES, clock
        self._free_s = self._rest_s = -math.inf

    @property
    def next_save_s(self) -> float:
        """When the next background save may start: the link is idle, and saves have not used up their share."""
        return max(self._free_s, self._rest_s)

    @property
    def is_idle(self) -> bool:
        """Whether a background save may start now."""
        return self.is_background and self._clock() >= self.next_save_s

    @property
    def is_free(self) -> bool:
        """Whether a prefetch may start now."""
        return self.is_background and self._clock() >= self._free_s

    @property
    def room_bytes(self) -> int:
        """How much can be saved now without a step waiting: the free part of the staging memory."""
        left_s, of_byte_s = self._free_s - self._clock(), self.rate.measured
        return self.staged_bytes if left_s <= 0 else max(0, self.staged_bytes - int(left_s / of_byte_s))

    def begin(self, size_bytes: int, *, is_save: bool = False) -> float:
        """Add a copy; return when it will end."""
        now_s = self._clock()
        self._free_s = max(now_s, self._free_s) + size_bytes * self.rate.measured
        if is_save:
            self._rest_s = now_s + (self._free_s - now_s) / _SAVE_SHARE
        return self._free_s
