"""Timing of calls: warmed up first, interleaved in rounds if several are compared, and checked for steadiness."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from trtkit.benchmarking.load import LoadClock, WallClock
from trtkit.benchmarking.statistics import median

STEADY_DRIFT = 0.1
"""Maximum difference between the medians of a run's last and first thirds, relative to the first."""


@dataclass(frozen=True)
class Rules:
    """When to stop measuring.

    Warm-up ends after `warmup_runs` rounds and `warmup_s` seconds. Measuring ends after `min_runs` rounds and `min_s`
    seconds, or at `max_s` seconds if there are at least `few_runs` rounds by then.
    """

    warmup_runs: int = 3
    warmup_s: float = 0.5
    min_runs: int = 20
    min_s: float = 2.0
    max_s: float = 60.0
    few_runs: int = 5

    def is_warm(self, runs: int, elapsed_s: float) -> bool:
        """Whether the warm-up is over."""
        return runs >= self.warmup_runs and elapsed_s >= self.warmup_s

    def is_done(self, runs: int, elapsed_s: float) -> bool:
        """Whether enough was measured."""
        is_enough = runs >= self.min_runs and elapsed_s >= self.min_s
        return is_enough or (runs >= self.few_runs and elapsed_s >= self.max_s)

    def share(self, runs: int, elapsed_s: float) -> float:
        """Return about which share of the measurement is done, from 0 to 1."""
        enough = min(runs / max(1, self.min_runs), elapsed_s / self.min_s if self.min_s else 1.0)
        late = min(runs / max(1, self.few_runs), elapsed_s / self.max_s if self.max_s else 1.0)
        return min(1.0, max(enough, late))


@dataclass(frozen=True)
class Timing:
    """Seconds of each call, in order, and the number of uncounted calls before them. starts_s: when each started."""

    samples_s: tuple[float, ...]
    starts_s: tuple[float, ...]
    warmup_runs: int

    @property
    def drift(self) -> float:
        """How much slower the last third is than the first, by their medians."""
        return drift_of(self.samples_s)

    @property
    def is_steady(self) -> bool:
        """Whether the drift is small. Unsteady timings are marked in every report."""
        return abs(self.drift) <= STEADY_DRIFT


def drift_of(samples: Sequence[float]) -> float:
    """Return how much larger the last third is than the first, by their medians."""
    third = max(1, len(samples) // 3)
    return median(samples[-third:]) / median(samples[:third]) - 1


def measure(
    calls: Mapping[str, Callable[[], object]],
    rules: Rules,
    clock: LoadClock | None = None,
    report: Callable[[float], None] | None = None,
) -> dict[str, Timing]:
    """Time every call once per round, so that anything that slows the machine affects all of them.

    The order rotates by one from round to round, so that no call always follows the same neighbor. report: called with
    the finished share, between rounds.
    """
    clock = clock or WallClock()
    begun, warmups = clock.now(), 0
    while not rules.is_warm(warmups, clock.now() - begun):
        _round(calls, warmups, clock)
        warmups += 1
    begun = clock.now()
    rounds: list[dict[str, tuple[float, float]]] = []
    while not rules.is_done(len(rounds), clock.now() - begun):
        rounds.append(_round(calls, len(rounds), clock))
        if report is not None:
            report(rules.share(len(rounds), clock.now() - begun))
    return {
        name: Timing(
            tuple(one_round[name][1] for one_round in rounds),
            tuple(one_round[name][0] - begun for one_round in rounds),
            warmups,
        )
        for name in calls
    }


def _round(calls: Mapping[str, Callable[[], object]], turn: int, clock: LoadClock) -> dict[str, tuple[float, float]]:
    """Return each call's start and seconds."""
    timed = {}
    for name in _turned(list(calls), turn):
        started = clock.now()
        calls[name]()
        timed[name] = (started, clock.now() - started)
    return timed


def _turned(names: Sequence[str], turn: int) -> list[str]:
    first = turn % len(names)
    return [*names[first:], *names[:first]]
