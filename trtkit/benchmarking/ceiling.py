"""How far figures are from what the hardware allows: floors of the roofline, and the share of them that was reached."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from trtkit.benchmarking.ceiling_report import Ceiling, LayerGap, LayerTime, PhaseLayers, PublishedRates, Reached
from trtkit.benchmarking.machine_rates import measure_machine
from trtkit.benchmarking.statistics import median
from trtkit.planning.gpus import gpu_of_device
from trtkit.planning.roofline import Floor, group_floor
from trtkit.runtime import device as devices

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from trtkit.planning.counts import GroupCounts, NetworkCounts
    from trtkit.planning.multilinear import Point
    from trtkit.planning.roofline import Roof

CPU, GPU = "cpu", "gpu"
MOST_GAPS = 3
# The share of a layer's time that has to be work on the roofline for it to be bound by that.
_LEAST_WORK = 0.01
_RUNS, _MOST_SECONDS = 7, 1.0


def ceiling_of(device: str | None, types: Iterable[str]) -> tuple[Ceiling, Roof | None]:
    """Return the ceiling of what computes on `device`: CPU, GPU, or None for somewhere else; and its rates, if known.

    types: those of the network's products, whose rates are measured on a CPU.
    """
    if device == GPU:
        return _gpu_ceiling()
    if device is None:
        return Ceiling("none: the server's hardware is not known here"), None
    machine = measure_machine(types)
    return machine, machine


def _gpu_ceiling() -> tuple[Ceiling, Roof | None]:
    """Return the published rates of the GPU that is here."""
    device = devices.find_device()
    assert device is not None
    gpu = gpu_of_device(device.name, device.memory_bytes)
    if gpu is None:
        return Ceiling(f"none: `{device.name}` is not in the table of GPUs (`trtkit plan --list-gpus`)"), None
    return PublishedRates(
        f"published rates of {gpu.name}", dict(gpu.rates), gpu.bandwidth_bytes_per_s, gpu.sources
    ), gpu


def of_time(least_s: float, measured_ms: float, bound: str) -> Reached:
    """Return a time's ceiling in ms, the share of it that was reached, and what it is bound by."""
    return Reached(least_s * 1e3, least_s * 1e3 / measured_ms, bound)


def of_rate(most_per_s: float, measured_per_s: float, bound: str) -> Reached:
    """Return a rate's ceiling, the share of it that was reached, and what it is bound by."""
    return Reached(most_per_s, measured_per_s / most_per_s, bound)


def phase_layers(
    name: str, counts: NetworkCounts, point: Point, roof: Roof, run_once: Callable[[], dict[str, float]]
) -> PhaseLayers:
    """Return the layers of a call at (B, S, T), timed a few times, and those that are furthest from their floors."""
    counts = counts.of_step(point)
    layers = layer_times(counts, point, roof, median_seconds(run_once))
    whole = (counts.flops.at(point), counts.moved_bytes.at(point))
    return PhaseLayers(name, *whole, layers, largest_gaps(layers))


def layer_times(counts: NetworkCounts, point: Point, roof: Roof, seconds: Mapping[str, float]) -> tuple[LayerTime, ...]:
    """Return each timed layer with its floor, in the order of `seconds`. counts: a group for each layer.

    A layer of an engine is several of the network's, by its name. One that is not counted only moves what others
    compute, or has a name of TensorRT's own: its floor is 0.
    """
    groups = {group.name: group for group in counts.of_step(point).groups}
    rows = []
    for name, layer_s in seconds.items():
        parts = [groups[part] for part in (name, *name.split(" + ")) if part in groups]
        rows.append(_layer_time(name, layer_s, list({part.name: part for part in parts}.values()), point, roof))
    return tuple(rows)


def _layer_time(name: str, layer_s: float, parts: Sequence[GroupCounts], point: Point, roof: Roof) -> LayerTime:
    """Return a layer's row. Fused parts compute all that they compute, and move at least what the largest one does."""
    floors = [group_floor(part, point, roof) for part in parts]
    compute = [floor.compute_s for floor in floors]
    known = None if None in compute else sum(seconds or 0.0 for seconds in compute)
    floor = Floor(known, max((floor.memory_s for floor in floors), default=0.0))
    return LayerTime(
        layer=name,
        layers=sum(part.layers for part in parts) or 1,
        ms=layer_s * 1e3,
        floor_ms=floor.seconds * 1e3,
        bound=_bound(floor, layer_s),
        flops=sum(part.flops.at(point) for part in parts),
        bytes=max((part.bytes.at(point) for part in parts), default=0),
    )


def _bound(floor: Floor, layer_s: float) -> str:
    """Return what a layer is bound by; overhead if next to nothing of its time is work."""
    return "overhead" if floor.seconds < layer_s * _LEAST_WORK else floor.bound


def largest_gaps(layers: Sequence[LayerTime]) -> tuple[LayerGap, ...]:
    """Return the layers that lose the most time to their floors."""
    gaps = [
        LayerGap(**vars(layer), gap_ms=layer.ms - layer.floor_ms, reached=layer.floor_ms / layer.ms) for layer in layers
    ]
    return tuple(sorted(gaps, key=lambda gap: -gap.gap_ms)[:MOST_GAPS])


def median_seconds(run: Callable[[], dict[str, float]]) -> dict[str, float]:
    """Return the median time of each layer over a few runs after an uncounted one."""
    run()
    begun, runs = time.perf_counter(), [run()]
    while len(runs) < _RUNS and time.perf_counter() - begun < _MOST_SECONDS:
        runs.append(run())
    return {name: median([run[name] for run in runs if name in run]) for name in runs[0]}
