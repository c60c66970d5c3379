"""The result of a simulation as data, and the search for the number of replicas that meets an objective."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from trtkit.errors import SimulationError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from trtkit.simulation.summary import Summary


@dataclass(frozen=True)
class Simulation:
    """A simulation. result: of the chosen number of replicas. tried: of every number that a search simulated.

    objectives: limits in ms by AIPerf's names. notes: what is assumed.
    """

    result: Summary
    tried: tuple[Summary, ...]
    objectives: Mapping[str, float]
    notes: tuple[str, ...]

    def to_json(self) -> dict[str, object]:
        """Return everything as JSON; undefined numbers are null."""
        data = {"result": asdict(self.result), "tried": [_brief(simulation) for simulation in self.tried]}
        return _finite({**data, "objectives": dict(self.objectives), "notes": list(self.notes)})  # type: ignore[return-value]


def _brief(summary: Summary) -> dict[str, object]:
    """Return a summary without its curves."""
    data = asdict(summary)
    for name in ("ttft", "tpot", "latency"):
        del data[name]["curve"]
    del data["moments"]
    return data


def _finite(value: object) -> object:
    if isinstance(value, dict):
        return {key: _finite(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


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
            best = max(simulation.goodput.share for simulation in tried.values() if simulation.goodput is not None)
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
