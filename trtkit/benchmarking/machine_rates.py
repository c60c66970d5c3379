"""What this machine's processor can do at best, measured with torch: the ceiling of figures that it computes."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

Json = dict[str, Any]
_TYPES = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}
_SIZE = 768
# A measurement is the best of so many calls, and of all within so many seconds: other programs may run meanwhile.
_RUNS, _SECONDS, _MOST_SECONDS = 7, 0.1, 0.5
# Well above what the caches of a processor hold.
_MEMORY_ELEMENTS = 2**24


@dataclass(frozen=True)
class MeasuredMachine:
    """A processor by rates that were measured, each the best of several: operations a second of products by type.

    copy and read: bytes a second of a copy, which reads and writes, and of a matrix-vector product, which reads.
    """

    rates: Mapping[str, float]
    copy_bytes_per_s: float
    read_bytes_per_s: float

    @property
    def bandwidth_bytes_per_s(self) -> float:
        """The faster of copying and reading."""
        return max(self.copy_bytes_per_s, self.read_bytes_per_s)

    def rate(self, dtype: str) -> float | None:
        """Return the rate of products of `dtype`: its own, or fp32's where that is higher or no other is known.

        Every type can be widened to fp32, and quantized ones are.
        """
        return max(self.rates["fp32"], self.rates.get(dtype, 0.0))

    @property
    def said(self) -> str:
        """In words."""
        products = ", ".join(f"{dtype} {rate / 1e9:.3g}" for dtype, rate in self.rates.items())
        memory = f"copy {self.copy_bytes_per_s / 1e9:.3g} and read {self.read_bytes_per_s / 1e9:.3g} GB/s"
        return f"measured here, torch matmul {products} GFLOP/s, {memory}"

    def to_json(self) -> Json:
        """Return the rates as data."""
        return {
            "said": self.said,
            "operations_per_s": dict(self.rates),
            "copy_bytes_per_s": self.copy_bytes_per_s,
            "read_bytes_per_s": self.read_bytes_per_s,
        }


def measure_machine(types: Iterable[str]) -> MeasuredMachine:
    """Measure fp32's rate, those of `types` that torch multiplies, and memory's; in a fraction of a second."""
    import torch

    wanted = dict.fromkeys(["fp32", *(name for name in types if name in _TYPES)])
    with torch.inference_mode():
        rates = {name: _product_rate(getattr(torch, _TYPES[name])) for name in wanted}
        return MeasuredMachine(rates, *_memory_rates())


def _product_rate(dtype: Any) -> float:
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
