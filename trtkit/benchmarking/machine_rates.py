"""What this machine's processor can do at best, measured with torch: the ceiling of figures that it computes."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from trtkit.benchmarking.ceiling_report import MeasuredRates

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    import torch

_TYPES = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}
_SIZE = 768
# A measurement is the best of so many calls, and of all within so many seconds: other programs may run meanwhile.
_RUNS, _SECONDS, _MOST_SECONDS = 7, 0.1, 0.5
# Well above what the caches of a processor hold.
_MEMORY_ELEMENTS = 2**24


def measure_machine(types: Iterable[str]) -> MeasuredRates:
    """Measure fp32's rate, those of `types` that torch multiplies, and memory's; in a fraction of a second."""
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
    """Return operations a second."""
    import torch

    a, b = (torch.ones(_SIZE, _SIZE).to(dtype) for _ in range(2))
    out = torch.empty_like(a)
    return 2 * _SIZE**3 / _best_s(lambda: torch.mm(a, b, out=out))


def _memory_rates() -> tuple[float, float]:
    """Return bytes a second of a copy and of a matrix-vector product."""
    import torch

    source = torch.zeros(_MEMORY_ELEMENTS)
    target, matrix, vector = torch.empty_like(source), source.view(4096, -1), torch.zeros(_MEMORY_ELEMENTS // 4096)
    copy_s, read_s = (_best_s(call) for call in (lambda: target.copy_(source), lambda: torch.mv(matrix, vector)))
    return 2 * source.nbytes / copy_s, source.nbytes / read_s


def _best_s(call: Callable[[], object]) -> float:
    """Return the least seconds of a few calls: a ceiling is what was reached when nothing else ran."""
    begun, samples = time.perf_counter(), list[float]()
    while _goes_on(len(samples), time.perf_counter() - begun):
        started = time.perf_counter()
        call()
        samples.append(time.perf_counter() - started)
    return min(samples)


def _goes_on(runs: int, elapsed_s: float) -> bool:
    return runs < 2 or (elapsed_s < _MOST_SECONDS and (runs < _RUNS or elapsed_s < _SECONDS))
