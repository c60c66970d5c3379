"""Weights that are checked and counted as they are read, for progress reports."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np

from trtkit.errors import NetworkError
from trtkit.jobs.events import Progress
from trtkit.sources.checkpoint import check_finite

if TYPE_CHECKING:
    from trtkit.jobs.events import Listener

_INTERVAL_S = 0.1


class Reported(Mapping[str, Any]):
    """Weights by path; fp64 is converted to fp32. Raises SourceError on reading one that is not finite.

    where: the source's name in errors.
    """

    def __init__(self, weights: Mapping[str, Any], report: Listener, where: str = "") -> None:
        self._weights, self._report, self._where, self._reported_s = weights, report, where, 0.0
        self._done = 0

    def __getitem__(self, path: str) -> Any:
        array = self._weights[path]
        if isinstance(array, np.ndarray) and array.dtype == np.float64:
            with np.errstate(over="ignore"):  # reported as not finite
                array = array.astype(np.float32)
        check_finite({_stored_name(self._weights, path): array}, self._where)
        self._done += 1
        if time.monotonic() - self._reported_s > _INTERVAL_S:
            self._reported_s = time.monotonic()
            self._report(Progress("weights", self._done, len(self._weights)))
        return array

    def __iter__(self) -> Iterator[str]:
        return iter(self._weights)

    def __len__(self) -> int:
        return len(self._weights)


@contextmanager
def stored_names(weights: Mapping[str, object], where: str) -> Iterator[None]:
    """Report errors about weights under the names in their file."""
    try:
        yield
    except NetworkError as error:
        path = error.where.replace("/", ".")
        if path not in weights:
            raise
        raise NetworkError(f"weight `{_stored_name(weights, path)}` {error.what}", where, error.fix) from None


def _stored_name(weights: Mapping[str, object], path: str) -> str:
    """Return a weight's name in the source; the path itself if the source has no names."""
    name_of = getattr(weights, "name_of", None)
    return path if name_of is None else str(name_of(path))
