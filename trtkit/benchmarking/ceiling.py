"""Distance of figures from the ceiling: roofline floors, and this machine's best processor rates."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from trtkit.benchmarking.ceiling_report import (
    Ceiling,
    LayerGap,
    LayerTime,
    MeasuredRates,
    PhaseLayers,
    PublishedRates,
    Reached,
)
from trtkit.benchmarking.statistics import median
from trtkit.planning.gpus import gpu_of_device
from trtkit.planning.roofline import Floor, group_floor
from trtkit.runtime import device as devices

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    import torch

    from trtkit.planning.counts import GroupCounts, NetworkCounts, Point
    from trtkit.planning.roofline import Roof

CPU, GPU = "cpu", "gpu"
MOST_GAPS = 3
# A layer is bound by the roofline only if the roofline accounts for at least this share of its time.
_LEAST_WORK = 0.01
_RUNS, _MOST_SECONDS = 7, 1.0


def ceiling_of(device: str | None, types: Iterable[str]) -> tuple[Ceiling, Roof | None]:
    """Return the ceiling for `device` (CPU, GPU, or None for elsewhere), and its rates if known.

    types: those of the network's products, whose rates are measured on a CPU.
    """
    if device == GPU:
        return _gpu_ceiling()
    if device is None:
        return Ceiling("none: the server's hardware is not known here"), None
    machine = measure_machine(types)
    return machine, machine


def _gpu_ceiling() -> tuple[Ceiling, Roof | None]:
    """Return the published rates of this machine's GPU."""
    device = devices.find_device()
    assert device is not None
    gpu = gpu_of_device(device.name, device.memory_bytes)
    if gpu is None:
        return Ceiling(f"none: `{device.name}` is not in the table of GPUs (`trtkit plan --list-gpus`)"), None
    return PublishedRates(
        f"published rates of {gpu.name}", dict(gpu.rates), gpu.bandwidth_bytes_per_s, gpu.sources
    ), gpu


def of_time(least_s: float, measured_ms: float, bound: str) -> Reached:
    """Return a time's floor in ms, the share of it that was reached, and what bounds it."""
    return Reached(least_s * 1e3, least_s * 1e3 / measured_ms, bound)


def of_rate(most_per_s: float, measured_per_s: float, bound: str) -> Reached:
    """Return a rate's ceiling, the share of it that was reached, and what bounds it."""
    return Reached(most_per_s, measured_per_s / most_per_s, bound)


def phase_layers(
    name: str, counts: NetworkCounts, point: Point, roof: Roof, run_once: Callable[[], dict[str, float]]
) -> PhaseLayers:
    """Return the layers of a call at (B, S, T), timed a few times, and those furthest from their floors."""
    counts = counts.of_step(point)
    layers = layer_times(counts, point, roof, median_seconds(run_once))
    whole = (counts.flops.at(point), counts.moved_bytes.at(point))
    return PhaseLayers(name, *whole, layers, largest_gaps(layers))


def layer_times(counts: NetworkCounts, point: Point, roof: Roof, seconds: Mapping[str, float]) -> tuple[LayerTime, ...]:
    """Return each timed layer with its floor, in the order of `seconds`. counts: one group per layer.

    An engine's layer may consist of several of the network's, as its name states. A layer that is not counted only
    moves others' data, or has a name given by TensorRT: its floor is 0.
    """
    groups = {group.name: group for group in counts.of_step(point).groups}
    rows = []
    for name, layer_s in seconds.items():
        parts = [groups[part] for part in (name, *name.split(" + ")) if part in groups]
        rows.append(_layer_time(name, layer_s, list({part.name: part for part in parts}.values()), point, roof))
    return tuple(rows)


def _layer_time(name: str, layer_s: float, parts: Sequence[GroupCounts], point: Point, roof: Roof) -> LayerTime:
    """Return a layer's row. Fused parts compute the sum of their work, and move at least as much as the largest one."""
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
    """Return what bounds a layer; overhead if almost none of its time is work."""
    return "overhead" if floor.seconds < layer_s * _LEAST_WORK else floor.bound


def largest_gaps(layers: Sequence[LayerTime]) -> tuple[LayerGap, ...]:
    """Return the layers that lose the most time compared with their floors."""
    gaps = [
        LayerGap(**vars(layer), gap_ms=layer.ms - layer.floor_ms, reached=layer.floor_ms / layer.ms) for layer in layers
    ]
    return tuple(sorted(gaps, key=lambda gap: -gap.gap_ms)[:MOST_GAPS])


def median_seconds(run: Callable[[], dict[str, float]]) -> dict[str, float]:
    """Return the median time of each layer over a few runs, after an uncounted run."""
    run()
    begun, runs = time.perf_counter(), [run()]
    while len(runs) < _RUNS and time.perf_counter() - begun < _MOST_SECONDS:
        runs.append(run())
    return {name: median([run[name] for run in runs if name in run]) for name in runs[0]}


_TYPES = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}
_SIZE = 768

# A measurement is the best of this many calls, within this many seconds in total: other programs may be running.
_RATE_RUNS, _RATE_SECONDS, _MOST_RATE_SECONDS = 7, 0.1, 0.5

# Well above the size of a processor's caches.
_MEMORY_ELEMENTS = 2**24


def measure_machine(types: Iterable[str]) -> MeasuredRates:
    """Measure the rates of fp32, of those `types` that torch multiplies, and of memory, in a fraction of a second."""
    import torch

    wanted = dict.fromkeys(["fp32", *(name for name in types if name in _TYPES)])
    with torch.inference_mode():
        rates = {name: _product_rate(getattr(torch, _TYPES[name])) for name in wanted}
        copy_bytes_per_s, read_bytes_per_s = _memory_rates()
    products = ", ".join(f"{dtype} {rate / 1e9:.3g}" for dtype, rate in rates.items())
    memory = f"copy {copy_bytes_per_s / 1e9:.3g} and read {read_bytes_per_s / 1e9:.3g} GB/s"
    text = f"measured here, torch matmul {products} GFLOP/s, {memory}"
    return MeasuredRates(text, rates, copy_bytes_per_s, read_bytes_per_s)


def _product_rate(dtype: torch.dtype) -> float:
    import torch

    a, b = (torch.ones(_SIZE, _SIZE).to(dtype) for _ in range(2))
    out = torch.empty_like(a)
    return 2 * _SIZE**3 / _best_s(lambda: torch.mm(a, b, out=out))


def _memory_rates() -> tuple[float, float]:
    """Return the bytes per second of a copy and of a matrix-vector product."""
    import torch

    source = torch.zeros(_MEMORY_ELEMENTS)
    target, matrix, vector = torch.empty_like(source), source.view(4096, -1), torch.zeros(_MEMORY_ELEMENTS // 4096)
    copy_s, read_s = (_best_s(call) for call in (lambda: target.copy_(source), lambda: torch.mv(matrix, vector)))
    return 2 * source.nbytes / copy_s, source.nbytes / read_s


def _best_s(call: Callable[[], object]) -> float:
    """Return the shortest time of a few calls in seconds: a ceiling is the speed with nothing else running."""
    begun, samples = time.perf_counter(), list[float]()
    while _goes_on(len(samples), time.perf_counter() - begun):
        started = time.perf_counter()
        call()
        samples.append(time.perf_counter() - started)
    return min(samples)


def _goes_on(runs: int, elapsed_s: float) -> bool:
    return runs < 2 or (elapsed_s < _MOST_RATE_SECONDS and (runs < _RATE_RUNS or elapsed_s < _RATE_SECONDS))
