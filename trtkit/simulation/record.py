"""What happened in a simulation, as arrays: of each request, and over time."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from trtkit.arrays import Array
    from trtkit.llm.scheduler.batch import Chunk
    from trtkit.simulation.recorder import ReplicaState
    from trtkit.simulation.requests import SimulatedRequest, Traffic

BINS = 120
"""Intervals of a curve over time."""
_LOW_S, _PER_DECADE, _DECADES = 1e-7, 200, 12  # of the histogram of gaps between tokens


class Record:
    """A Recorder. first_token_s, finished_s: [N], NaN for requests that were dropped.

    busy_s: of all replicas. reserved, used, unread: integrals over
    time of the tokens that caches have places for, hold, and will hold once the prompts are computed.
    """

    def __init__(self, traffic: Traffic) -> None:
        count = len(traffic)
        self.first_token_s: Array = np.full(count, np.nan)
        self.finished_s: Array = np.full(count, np.nan)
        self._gaps = [0.0] * (_PER_DECADE * _DECADES)
        self.busy_s = self.reserved = self.used = self.unread = self.row_s = 0.0
        self.prompt_tokens = self.shared_tokens = self.restored_tokens = self.computed_tokens = 0
        self.preemptions = self.dropped = self.most_running = self.done = 0
        self.last_s = 0.0
        self._bin_s = max(float(traffic.arrival_s[-1]) if count else 0.0, 1e-9) / BINS
        self._waiting_s, self._running_s = [0.0] * BINS, [0.0] * BINS

    @property
    def gaps(self) -> Array:
        """How many tokens came after a gap of each size."""
        return np.array(self._gaps)

    @property
    def waiting_s(self) -> Array:
        """Seconds that requests waited in each interval, all together."""
        return np.array(self._waiting_s)

    @property
    def running_s(self) -> Array:
        """Seconds that requests ran in each interval, all together."""
        return np.array(self._running_s)

    @property
    def bin_s(self) -> float:
        """Seconds of an interval of the curves."""
        return self._bin_s

    def begin(self, request: SimulatedRequest, now_s: float, shared: int, restored: int) -> None:  # noqa: ARG002
        """Count a prompt; see Recorder."""
        self.match(request, shared)
        if request.is_new:
            self.restored_tokens += restored
            self.prompt_tokens += request.prompt_tokens

    def match(self, request: SimulatedRequest, shared: int) -> None:
        """Count what is shared besides; see Recorder."""
        if request.is_new:
            self.shared_tokens += shared

    def read(self, request: SimulatedRequest, chunk: Chunk, now_s: float) -> None:  # noqa: ARG002
        """Count what is computed; see Recorder."""
        self.computed_tokens += chunk.count

    def finish(self, request: SimulatedRequest, now_s: float) -> None:
        """Note a request's times; see Recorder."""
        self.first_token_s[request.number] = request.first_token_s
        self.finished_s[request.number] = now_s
        self.preemptions += request.metrics.preemptions
        self.last_s = max(self.last_s, now_s)
        self.done += 1

    def drop(self, request: SimulatedRequest, now_s: float) -> None:  # noqa: ARG002
        """Count a request that is not served; see Recorder."""
        self.last_s = max(self.last_s, now_s)
        self.dropped += 1
        self.done += 1

    def pass_time(self, state: ReplicaState, begin_s: float, end_s: float, steps: int) -> None:
        """Add up what holds meanwhile; see Recorder."""
        seconds, rows = end_s - begin_s, state.decoding
        running = rows + state.reading
        self.busy_s += seconds
        self.row_s += running * seconds
        if running > self.most_running:
            self.most_running = running
        self.used += (state.cached_tokens + rows * steps // 2) * seconds
        self.unread += state.unread_tokens * seconds
        self.reserved += state.reserved_tokens * seconds
        if steps and seconds > 0:
            self._gaps[gap_index(seconds / steps)] += rows * steps
        index = int(begin_s / self._bin_s)
        if index < BINS:
            self._waiting_s[index] += state.waiting * seconds
            self._running_s[index] += running * seconds


def gap_index(seconds: float) -> int:
    """Return the place of a gap in the histogram."""
    place = int(math.log10(seconds / _LOW_S) * _PER_DECADE)
    return min(max(place, 0), _PER_DECADE * _DECADES - 1)


def gap_percentile(gaps: Array, share: float) -> float:
    """Return the seconds that a share of all gaps does not exceed, to about a hundredth; NaN without gaps."""
    total = gaps.sum()
    if not total:
        return float("nan")
    place = int(np.searchsorted(np.cumsum(gaps), share * total))
    return float(_LOW_S * 10 ** ((place + 0.5) / _PER_DECADE))
