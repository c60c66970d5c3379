"""Weights that are checked as they are read, and tell how far the reading is."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from trtkit.jobs.events import Progress
from trtkit.sources.checkpoint import check_finite

if TYPE_CHECKING:
    from trtkit.jobs.events import Listener

_INTERVAL_S = 0.1


class Reported(Mapping[str, Any]):
    """Weights by path. Raises SourceError for one that is not finite when it is read."""

    def __init__(self, weights: Mapping[str, Any], report: Listener) -> None:
        self._weights, self._report, self._reported_s = weights, report, 0.0
        self._done = 0

    def __getitem__(self, path: str) -> Any:
        array = self._weights[path]
        check_finite({path: array})
        self._done += 1
        if time.monotonic() - self._reported_s > _INTERVAL_S:
            self._reported_s = time.monotonic()
            self._report(Progress("weights", self._done, len(self._weights)))
        return array

    def __iter__(self) -> Iterator[str]:
        return iter(self._weights)

    def __len__(self) -> int:
        return len(self._weights)
