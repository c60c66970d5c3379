"""The GPU's measured ceilings, which other answers are compared with."""

from __future__ import annotations

import platform
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.gpu.place import Place
    from tests.gpu.step import Answer


def ask(place: Place) -> Iterator[Answer]:
    """Measure copies and matrix products on random data."""
    yield {"what": "Python", "seen": platform.python_version()}
    yield {"what": "TensorRT-RTX loads", "holds": not place.machine.fault, "seen": place.machine.fault}
    yield {"what": "Triton can compile", "holds": not place.machine.no_kernels, "seen": place.machine.no_kernels}
    yield {"what": "copy, bytes read and written", "gb_per_s": copy_bytes_per_s(place) / 1e9}
    size = 8192 if place.has_gpu else 64
    for dtype in (torch.bfloat16, torch.float16, torch.float32):
        a, b = (torch.randn(size, size, device=place.torch_device).to(dtype) for _ in range(2))
        ms = place.median_ms(lambda: torch.mm(a, b), repeats=10)  # noqa: B023
        yield {"what": f"matrix product of {size}, {dtype}", "tflop_per_s": 2 * size**3 / ms / 1e9}


def copy_bytes_per_s(place: Place) -> float:
    """Return bytes per second of a large copy, read and written."""
    source = torch.randn(2**29 if place.has_gpu else 2**16, device=place.torch_device)
    target = torch.empty_like(source)
    return 2 * source.nbytes / place.median_ms(lambda: target.copy_(source), repeats=10) * 1e3
