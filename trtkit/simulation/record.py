"""The events of a simulation as arrays: per request and over time."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

import numpy as np

if TYPE_CHECKING:
    from trtkit.arrays import Array
    from trtkit.llm.scheduler.batch import Chunk
    from trtkit.simulation.requests import SimulatedRequest, Traffic


class Passed(NamedTuple):
    """State during `steps` equal steps. decoding, reading, waiting: requests. cached_tokens: of those that run.

    unread_tokens: uncomputed tokens of prompts that had started. reserved_tokens: tokens that its caches had room for,
    on average. All others are as the steps began.
    """

    decoding: int
    reading: int
    waiting: int
    cached_tokens: int
    unread_tokens: int
    reserved_tokens: int
    begin_s: float
    end_s: float
    steps: int


class Recorder(Protocol):
    """Receives the events of a simulation."""

    def begin(self, request: SimulatedRequest, now_s: float, shared: int, restored: int) -> None:
        """A request got a slot; `shared` of its tokens were cached already, `restored` of them on the host."""

    def match(self, request: SimulatedRequest, shared: int) -> None:
        """A request that has read nothing yet shares `shared` more tokens."""

    def read(self, request: SimulatedRequest, chunk: Chunk, now_s: float) -> None:
        """A prompt chunk has been computed."""

    def finish(self, request: SimulatedRequest, now_s: float) -> None:
        """A request is complete."""

    def drop(self, request: SimulatedRequest, now_s: float) -> None:
        """A request was dropped: its deadline passed before it got a slot, or it fits no replica."""

    def pass_time(self, passed: Passed) -> None:
        """Steps are over; their effects come next."""


BINS = 120
"""Number of intervals of a curve over time."""
_FIELDS, _MOST_PASSED = 9, 9 * 4096  # numbers per step; size of a batch of steps that is added up at once
_LOW_S, _PER_DECADE, _PLACES = 1e-7, 200, 200 * 12  # of the histogram of gaps between tokens


class StepSums:
    """Sums over all replicas' steps.

    gaps: number of tokens by the size of the gap before them. busy_s: of all replicas. reserved, used, unread:
    integrals over time of the tokens that caches have room for, hold, and will hold once the prompts are computed.
    waiting_s, running_s: [BINS], seconds that requests waited and ran in each interval of `bin_s`, summed over
    requests.
    """

    def __init__(self, bin_s: float) -> None:
        self.bin_s = bin_s
        self.gaps, self.waiting_s, self.running_s = np.zeros(_PLACES), np.zeros(BINS), np.zeros(BINS)
        self.busy_s = self.reserved = self.used = self.unread = self.row_s = 0.0
        self.most_running = 0

    def add(self, steps: Array) -> None:
        """Add steps in order: [N, 9], the fields of a Passed."""
        rows, reading, waiting, cached, unread, reserved, begin_s, end_s, counts = steps.T
        seconds, running = end_s - begin_s, rows + reading
        self.busy_s = _sum(self.busy_s, seconds)
        self.row_s = _sum(self.row_s, running * seconds)
        self.used = _sum(self.used, (cached + rows * counts // 2) * seconds)
        self.unread = _sum(self.unread, unread * seconds)
        self.reserved = _sum(self.reserved, reserved * seconds)
        self.most_running = max(self.most_running, int(running.max()))
        has_gaps = (counts > 0) & (seconds > 0)
        gaps, weights = (seconds[has_gaps] / counts[has_gaps], (rows * counts)[has_gaps])
        self.gaps += np.bincount(gap_indices(gaps), weights, _PLACES)
        index, bins, within_s = self._intervals(begin_s, end_s)
        for totals, requests in ((self.waiting_s, waiting), (self.running_s, running)):
            np.add.at(totals, bins, requests[index] * within_s)

    def _intervals(self, begin_s: Array, end_s: Array) -> tuple[Array, Array, Array]:
        """Return the intervals in which steps ran, in order: step, interval, seconds within it; [M] each."""
        first, last = (np.minimum(each / self.bin_s, BINS).astype(np.int64) for each in (begin_s, end_s))
        counts = np.minimum(last, BINS - 1) + 1 - first  # 0 for steps after the last interval
        index = np.repeat(np.arange(len(first)), counts)
        bins = np.arange(len(index)) - np.repeat(np.cumsum(counts) - counts - first, counts)
        within_s = np.minimum(end_s[index], (bins + 1) * self.bin_s) - np.maximum(begin_s[index], bins * self.bin_s)
        return index, bins, np.maximum(within_s, 0.0)


def _sum(start: float, values: Array) -> float:
    """Return `start` with values added one after the other, so that the result does not depend on the batch size."""
    return float(np.cumsum(np.append(start, values))[-1])


class Record:
    """A Recorder. first_token_s, finished_s: [N]; NaN for dropped requests."""

    def __init__(self, traffic: Traffic) -> None:
        count = len(traffic)
        self.first_token_s: Array = np.full(count, np.nan)
        self.finished_s: Array = np.full(count, np.nan)
        self.prompt_tokens = self.shared_tokens = self.restored_tokens = self.computed_tokens = 0
        self.preemptions = self.dropped = self.done = 0
        self.last_s = 0.0
        self._sums = StepSums(max(float(traffic.arrival_s[-1]) if count else 0.0, 1e-9) / BINS)
        self._passed: list[float] = []  # steps that are not in the sums yet

    @property
    def steps(self) -> StepSums:
        """Sums over all steps."""
        if self._passed:
            self._sums.add(np.array(self._passed).reshape(-1, _FIELDS))
            self._passed = []
        return self._sums

    def begin(self, request: SimulatedRequest, now_s: float, shared: int, restored: int) -> None:  # noqa: ARG002
        """Count a prompt; see Recorder."""
        if request.is_new:
            self.shared_tokens += shared
            self.restored_tokens += restored
            self.prompt_tokens += request.prompt_tokens

    def match(self, request: SimulatedRequest, shared: int) -> None:
        """Count additionally shared tokens; see Recorder."""
        if request.is_new:
            self.shared_tokens += shared

    def read(self, request: SimulatedRequest, chunk: Chunk, now_s: float) -> None:  # noqa: ARG002
        """Count computed tokens; see Recorder."""
        self.computed_tokens += chunk.count

    def finish(self, request: SimulatedRequest, now_s: float) -> None:
        """Record a request's times; see Recorder."""
        self.first_token_s[request.number] = request.first_token_s
        self.finished_s[request.number] = now_s
        self.preemptions += request.metrics.preemptions
        self.last_s = max(self.last_s, now_s)
        self.done += 1

    def drop(self, request: SimulatedRequest, now_s: float) -> None:  # noqa: ARG002
        """Count a dropped request; see Recorder."""
        self.last_s = max(self.last_s, now_s)
        self.dropped += 1
        self.done += 1

    def pass_time(self, passed: Passed) -> None:
        """Record the state during steps; see Recorder."""
        self._passed += passed
        if len(self._passed) >= _MOST_PASSED:
            _ = self.steps


def gap_indices(seconds: Array) -> Array:
    """Return the histogram bin of each gap."""
    places = (np.log10(seconds / _LOW_S) * _PER_DECADE).astype(np.int64)
    indices: Array = np.clip(places, 0, _PLACES - 1)
    return indices


def gap_percentile(gaps: Array, share: float) -> float:
    """Return the gap that a share of all gaps does not exceed, in seconds, to about 1 %; NaN without gaps."""
    total = gaps.sum()
    if not total:
        return float("nan")
    index = int(np.searchsorted(np.cumsum(gaps), share * total))
    return float(_LOW_S * 10 ** ((index + 0.5) / _PER_DECADE))
