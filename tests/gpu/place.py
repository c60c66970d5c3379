"""Where steps run: a GPU with TensorRT-RTX, or the simulated runtime on host memory."""

from __future__ import annotations

import platform
import statistics
import time
from dataclasses import dataclass
from importlib import metadata
from typing import TYPE_CHECKING

import torch

from tests.simulated_tensorrt import Simulated, simulate
from trtkit.backends import Backend, load_backend
from trtkit.bundle.bundle import Bundle, is_bundle, open_bundle
from trtkit.engine.build import build_bundle
from trtkit.jobs.runner import InlineRunner
from trtkit.runtime.device import CudaDevice

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from trtkit.config.schema import ModelConfig
    from trtkit.runtime.device import Device, Stream

SIMULATED = "simulated"
PACKAGES = ("tensorrt-rtx-cu13-bindings", "torch", "triton", "transformers", "numpy", "onnx", "trtkit")


@dataclass(frozen=True, eq=False)
class Place:
    """name: the GPU's, or `simulated`, where models are small and repeats few. scratch: for models and bundles."""

    name: str
    device: Device
    backend: Backend
    scratch: Path
    simulated: Simulated | None

    @property
    def is_simulated(self) -> bool:
        """Whether no GPU is there: its times mean nothing."""
        return self.simulated is not None

    @property
    def torch_device(self) -> str:
        """Where torch computes."""
        return "cpu" if self.is_simulated else "cuda"

    def bundle(self, name: str, config: Callable[[], ModelConfig]) -> Bundle:
        """Return the bundle of a config, built by the first step that needs it."""
        folder = self.scratch / "bundles" / name
        if is_bundle(folder):
            bundle = open_bundle(folder)
        else:
            bundle = build_bundle(config(), folder, InlineRunner(), use_cache=False).bundle
        if self.simulated is not None:
            self.simulated.plans.add(bundle)
        return bundle

    def median_ms(self, run: Callable[[], object], stream: Stream | None = None, repeats: int = 30) -> float:
        """Return the median wall time of a call and of what it puts on the GPU, after three that warm up.

        Without a GPU, it is that of a single call.
        """
        warm_ups, repeats = (0, 1) if self.is_simulated else (3, repeats)
        samples = []
        for index in range(warm_ups + repeats):
            started = time.perf_counter()
            run()
            self.synchronize(stream)
            if index >= warm_ups:
                samples.append((time.perf_counter() - started) * 1e3)
        return statistics.median(samples)

    def synchronize(self, stream: Stream | None = None) -> None:
        """Wait for a stream, or for everything on a GPU."""
        if stream is not None:
            stream.synchronize()
        if not self.is_simulated:
            torch.cuda.synchronize()


def open_place(scratch: Path, *, is_simulated: bool) -> Place:
    """Open the GPU of this machine, or the simulated runtime in this process. Raises RuntimeError without a GPU."""
    backend = load_backend("tensorrt_rtx")
    if is_simulated:
        simulated = simulate(setattr)
        return Place(SIMULATED, simulated.device, backend, scratch, simulated)
    device = CudaDevice()
    return Place(device.name, device, backend, scratch, None)


def versions(*, is_simulated: bool) -> dict[str, str]:
    """Return what an answer depends on."""
    from trtkit.version import __version__

    known = {"python": platform.python_version(), "trtkit": __version__}
    for package in PACKAGES:
        try:
            known[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    if not is_simulated:
        known |= {"cuda": str(torch.version.cuda), "driver": _driver()}
        major, minor = torch.cuda.get_device_capability()
        known["compute capability"] = f"{major}.{minor}"
    return known


def _driver() -> str:
    import ctypes

    version = ctypes.c_int()
    ctypes.CDLL("libcuda.so.1").cuDriverGetVersion(ctypes.byref(version))
    return f"CUDA {version.value // 1000}.{version.value % 1000 // 10}"
