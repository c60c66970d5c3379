"""How fast caches are copied to the host: as measured, and as the link says where nothing is known."""

from __future__ import annotations

_LINK_SECONDS_PER_BYTE = 1 / 25e9  # PCIe 4.0 with 16 lanes
_NEWEST, _FORGOTTEN = 0.3, 0.1


class CopyRate:
    """A running mean, which a slow copy does not settle forever: with each `forget` it comes closer to the link's."""

    def __init__(self) -> None:
        self.seconds_per_byte = _LINK_SECONDS_PER_BYTE
        self._is_measured = False

    def note(self, seconds: float, size_bytes: int) -> None:
        """Take what a copy took."""
        newest, share = seconds / size_bytes, _NEWEST if self._is_measured else 1.0
        self.seconds_per_byte += share * (newest - self.seconds_per_byte)
        self._is_measured = True

    def forget(self) -> None:
        """Note that something was not copied, so that nothing was measured."""
        self.seconds_per_byte += _FORGOTTEN * (_LINK_SECONDS_PER_BYTE - self.seconds_per_byte)
