"""The result of a simulation as data."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

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
        data = {"result": asdict(self.result), "tried": [_brief(each) for each in self.tried]}
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
        return {key: _finite(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
