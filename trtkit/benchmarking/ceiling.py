"""How far figures are from what the hardware allows: floors of the roofline, and the share of them that was reached."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from trtkit.benchmarking.machine_rates import measure_machine
from trtkit.benchmarking.statistics import median
from trtkit.planning.gpus import gpu_of_device
from trtkit.planning.roofline import Floor, group_floor

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from trtkit.planning.counts import Counts, Group
    from trtkit.planning.multilinear import Point
    from trtkit.planning.roofline import Roof

Json = dict[str, Any]
CPU, GPU = "cpu", "gpu"
MOST_GAPS = 3
# The share of a layer's time that has to be work on the roofline for it to be bound by that.
_LEAST_WORK = 0.01
_RUNS, _MOST_SECONDS = 7, 1.0


@dataclass(frozen=True)
class Ceiling:
    """What a run's figures are held against. roof: None where it is not known; said: in words, then why."""

    roof: Roof | None
    said: str
    facts: Json

    def to_json(self) -> Json:
        """Return what a report says of it."""
        return {"said": self.said, **self.facts}


def ceiling_of(place: str | None, types: Iterable[str]) -> Ceiling:
    """Return the ceiling of what computes at `place`: CPU, GPU, or None for somewhere else.

    types: those of the network's products, whose rates are measured on a CPU.
    """
    if place == GPU:
        return _gpu_ceiling()
    if place is None:
        return Ceiling(None, "none: the server's hardware is not known here", {})
    machine = measure_machine(types)
    return Ceiling(machine, machine.said, machine.to_json())


def _gpu_ceiling() -> Ceiling:
    """Return the published rates of the GPU that is here."""
    import torch

    name, (_, memory_bytes) = torch.cuda.get_device_name(), torch.cuda.mem_get_info()
    gpu = gpu_of_device(name, memory_bytes)
    if gpu is None:
        return Ceiling(None, f"none: `{name}` is not in the table of GPUs (`trtkit plan --list-gpus`)", {})
    facts = {"operations_per_s": dict(gpu.rates), "bytes_per_s": gpu.bandwidth_bytes_per_s, "sources": gpu.sources}
    return Ceiling(gpu, f"published rates of {gpu.name}", facts)


def of_time(least_s: float, measured_ms: float, bound: str) -> Json:
    """Return a time's ceiling in ms, the share of it that was reached, and what it is bound by."""
    return {"ceiling": least_s * 1e3, "reached": least_s * 1e3 / measured_ms, "bound": bound}


def of_rate(most_per_s: float, measured_per_s: float, bound: str) -> Json:
    """Return a rate's ceiling, the share of it that was reached, and what it is bound by."""
    return {"ceiling": most_per_s, "reached": measured_per_s / most_per_s, "bound": bound}


def layer_rows(counts: Counts, point: Point, roof: Roof, seconds: Mapping[str, float]) -> list[Json]:
    """Return each timed layer beside its floor, in the order of `seconds`. counts: a group for each layer.

    A layer of an engine is several of the network's, by its name. One that is not counted only moves what others
    compute, or has a name of TensorRT's own: its floor is 0.
    """
    groups = {group.name: group for group in counts.groups}
    found = []
    for name, took in seconds.items():
        parts = [groups[part] for part in (name, *name.split(" + ")) if part in groups]
        found.append(_row(name, took, list({part.name: part for part in parts}.values()), point, roof))
    return found


def _row(name: str, took_s: float, parts: Sequence[Group], point: Point, roof: Roof) -> Json:
    """Return a layer's row. Fused parts compute all that they compute, and move at least what the largest one does."""
    floors = [group_floor(part, point, roof) for part in parts]
    compute = [floor.compute_s for floor in floors]
    known = None if None in compute else sum(seconds or 0.0 for seconds in compute)
    floor = Floor(known, max((floor.memory_s for floor in floors), default=0.0))
    return {
        "layer": name,
        "layers": sum(part.layers for part in parts) or 1,
        "ms": took_s * 1e3,
        "floor_ms": floor.seconds * 1e3,
        "bound": _bound(floor, took_s),
        "flops": sum(part.flops.at(point) for part in parts),
        "bytes": max((part.bytes.at(point) for part in parts), default=0),
    }


def _bound(floor: Floor, took_s: float) -> str:
    """Return what a layer is bound by; overhead where next to nothing of its time is work."""
    return "overhead" if floor.seconds < took_s * _LEAST_WORK else floor.bound


def largest_gaps(rows: Sequence[Json]) -> list[Json]:
    """Return the layers that lose the most time to their floors."""
    gaps = [row | {"gap_ms": row["ms"] - row["floor_ms"], "reached": row["floor_ms"] / row["ms"]} for row in rows]
    return sorted(gaps, key=lambda row: -row["gap_ms"])[:MOST_GAPS]


def median_seconds(run: Callable[[], dict[str, float]]) -> dict[str, float]:
    """Return the median time of each layer over a few runs behind an uncounted one."""
    run()
    begun, runs = time.perf_counter(), [run()]
    while len(runs) < _RUNS and time.perf_counter() - begun < _MOST_SECONDS:
        runs.append(run())
    return {name: median([each[name] for each in runs if name in each]) for name in runs[0]}
