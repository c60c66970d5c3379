"""The link between a device and its host as numbers: how fast copies are, and when those that were begun are over."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

STAGED_BYTES = 128 << 20
"""What saves pack on the device before it is copied: so much leaves its memory at once, and nobody waits."""
_SAVE_SHARE = 0.5  # of the link's time, for saves in the background
_LINK_SECONDS_PER_BYTE = 1 / 25e9  # PCIe 4.0 with 16 lanes
_NEWEST, _FORGOTTEN = 0.3, 0.1


class CopyRate:
    """A running mean, which a slow copy does not settle forever: with each `forget` it comes closer to the link's.

    measured: the mean itself.
    """

    def __init__(self) -> None:
        self.seconds_per_byte = self.measured = _LINK_SECONDS_PER_BYTE
        self._is_measured = False

    def note(self, seconds: float, size_bytes: int) -> None:
        """Take what a copy took."""
        newest, share = seconds / size_bytes, _NEWEST if self._is_measured else 1.0
        self.seconds_per_byte += share * (newest - self.seconds_per_byte)
        self.measured += share * (newest - self.measured)
        self._is_measured = True

    def forget(self) -> None:
        """Note that something was not copied, so that nothing was measured."""
        self.seconds_per_byte += _FORGOTTEN * (_LINK_SECONDS_PER_BYTE - self.seconds_per_byte)


class Link:
    """One copy after the other, each as long as earlier ones say.

    is_background: whether steps run meanwhile. If not, whoever copies waits, and nothing is planned here.
    staged_bytes: what a device packs before it is copied.
    """

    def __init__(self, clock: Callable[[], float], *, is_background: bool) -> None:
        self.rate, self.is_background = CopyRate(), is_background
        self.staged_bytes, self._clock = STAGED_BYTES, clock
        self._free_s = self._rest_s = -math.inf

    @property
    def next_save_s(self) -> float:
        """When the next save in the background may begin: the link is idle, and saves have not had their share."""
        return max(self._free_s, self._rest_s)

    @property
    def is_idle(self) -> bool:
        """Whether a save in the background may begin now."""
        return self.is_background and self._clock() >= self.next_save_s

    @property
    def is_free(self) -> bool:
        """Whether a load may begin now that nobody waits for."""
        return self.is_background and self._clock() >= self._free_s

    @property
    def room_bytes(self) -> int:
        """What can be saved now so that no step waits: what is packed on the device until it is copied."""
        left_s, of_byte_s = self._free_s - self._clock(), self.rate.measured
        return self.staged_bytes if left_s <= 0 else max(0, self.staged_bytes - int(left_s / of_byte_s))

    def begin(self, size_bytes: int, *, is_save: bool = False) -> float:
        """Note a copy; return when it will be over."""
        now_s = self._clock()
        self._free_s = max(now_s, self._free_s) + size_bytes * self.rate.measured
        if is_save:
            self._rest_s = now_s + (self._free_s - now_s) / _SAVE_SHARE
        return self._free_s
