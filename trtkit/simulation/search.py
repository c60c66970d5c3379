"""The number of GPUs that a load needs: the fewest replicas that meet an objective in simulation."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trtkit.errors import SimulationError

if TYPE_CHECKING:
    from collections.abc import Callable

    from trtkit.simulation.summary import Summary

LARGEST = 4096
"""Number of replicas at which the search gives up."""


def find_replicas(run: Callable[[int], Summary], share: float) -> tuple[int, list[Summary]]:
    """Return the fewest replicas with which a share of all requests meets the objectives, and all numbers tried.

    run: simulates a number of replicas. Raises SimulationError if no number is enough.
    """
    tried: dict[int, Summary] = {}

    def is_enough(count: int) -> bool:
        if count not in tried:
            tried[count] = run(count)
        goodput = tried[count].goodput
        return goodput is not None and goodput.share >= share

    high = 1
    while not is_enough(high):
        if high >= LARGEST or _is_idle(tried[high]):
            best = max(each.goodput.share for each in tried.values() if each.goodput is not None)
            what = f"{high} replicas keep {best:.1%} of the requests within the objectives, and more would not help"
            raise SimulationError(what, "--goodput", "relax the objectives, or choose a faster GPU")
        high *= 2
    low = high // 2
    while low + 1 < high:
        middle = (low + high) // 2
        low, high = (low, middle) if is_enough(middle) else (middle, high)
    return high, [tried[count] for count in sorted(tried)]


def _is_idle(summary: Summary) -> bool:
    """Whether requests hardly share replicas any more."""
    return summary.running < 1.05 and summary.waiting < 0.01
