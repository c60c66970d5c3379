"""Where steps run: on a GPU with TensorRT-RTX, or on the simulated runtime, which uses a GPU or host memory."""

from __future__ import annotations

import json
import platform
import statistics
import time
from dataclasses import dataclass, replace
from importlib import metadata
from typing import TYPE_CHECKING

import torch

from tests.gpu.answers import Skipped
from tests.gpu.rule import BACKEND, CPU, Machine, why_no_kernels
from tests.simulated_tensorrt import Simulated, load_interface, simulate
from tests.simulated_tensorrt.gpu import SimulatedGpu
from trtkit.backends import Backend, load_backend
from trtkit.builder.build import build_bundle
from trtkit.bundle.bundle import Bundle, is_bundle, open_bundle
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
    """name: the GPU's, or `simulated`, which has small models and few repeats. scratch: for models and bundles.

    machine: the machine's capabilities.
    """

    name: str
    device: Device
    backend: Backend
    scratch: Path
    simulated: Simulated | None
    machine: Machine = CPU

    @property
    def is_simulated(self) -> bool:
        """Whether TensorRT is simulated: models are small, and engines' times are meaningless."""
        return self.simulated is not None

    @property
    def has_gpu(self) -> bool:
        """Whether torch computes on a GPU; without one, times are meaningless."""
        return self.machine.compute_capability is not None

    @property
    def has_engines(self) -> bool:
        """Whether engines of networks written by a step can run: on TensorRT, or simulated on the host."""
        return not self.machine.fault and (not self.has_gpu or not self.machine.no_engines)

    @property
    def torch_device(self) -> str:
        """The device that torch computes on."""
        return "cuda" if self.has_gpu else "cpu"

    def bundle(self, name: str, config: Callable[[], ModelConfig]) -> Bundle:
        """Return a config's bundle, built by the first step that needs it. Raises Skipped if it cannot be built."""
        folder = self.scratch / "bundles" / name
        if is_bundle(folder):
            bundle = open_bundle(folder)
        elif self.machine.fault:
            raise Skipped(f"bundle `{name}` was not built beforehand, and {self.machine.fault}")
        else:
            bundle = build_bundle(config(), folder, InlineRunner(), use_cache=False).bundle
        if self.simulated is not None:
            self.simulated.plans.add(bundle)
        return bundle

    def median_ms(self, run: Callable[[], object], stream: Stream | None = None, repeats: int = 30) -> float:
        """Return the median wall time of a call including its work on the GPU, after three warm-up calls.

        Without a GPU, it is the time of a single call.
        """
        warm_ups, repeats = (3, repeats) if self.has_gpu else (0, 1)
        samples = []
        for index in range(warm_ups + repeats):
            started = time.perf_counter()
            run()
            self.synchronize(stream)
            if index >= warm_ups:
                samples.append((time.perf_counter() - started) * 1e3)
        return statistics.median(samples)

    def synchronize(self, stream: Stream | None = None) -> None:
        """Wait for a stream, or for all work on the GPU."""
        if stream is not None:
            stream.synchronize()
        if self.has_gpu:
            torch.cuda.synchronize()


def open_place(scratch: Path, *, on_host: bool, simulates: bool) -> Place:
    """Return this machine as a place for steps.

    on_host: use host memory instead of the GPU. simulates: simulate TensorRT, as is always done on host memory.
    """
    fault = load_interface()
    move(scratch)
    here = replace(CPU, fault=fault) if on_host else this_machine(fault)
    if simulates or here.compute_capability is None:
        simulated = simulate(setattr, None if here.compute_capability is None else SimulatedGpu())
        name = SIMULATED if here.compute_capability is None else here.name
        return Place(name, simulated.device, load_backend(BACKEND), scratch, simulated, here)
    return Place(here.name, CudaDevice(), load_backend(BACKEND), scratch, None, here)


def this_machine(fault: str) -> Machine:
    """Return this machine's capabilities. fault: why TensorRT-RTX does not load; empty if it does."""
    if not torch.cuda.is_available():
        return replace(CPU, fault=fault)
    major, minor = torch.cuda.get_device_capability()
    return Machine(torch.cuda.get_device_name(), 10 * major + minor, fault, why_no_kernels())


def move(scratch: Path) -> None:
    """Update the paths of sources in bundles, which may have been carried here from another folder."""
    note = scratch / "folder.txt"
    before = note.read_text(encoding="utf-8") if note.exists() else ""
    if before == str(scratch):
        return
    for manifest in scratch.glob("bundles/*/manifest.json") if before else ():
        text = manifest.read_text(encoding="utf-8")
        manifest.write_text(text.replace(json.dumps(before)[1:-1], json.dumps(str(scratch))[1:-1]), encoding="utf-8")
    scratch.mkdir(parents=True, exist_ok=True)
    note.write_text(str(scratch), encoding="utf-8")


def versions(*, has_gpu: bool) -> dict[str, str]:
    """Return the versions that answers depend on."""
    from trtkit.version import __version__

    known = {"python": platform.python_version(), "trtkit": __version__}
    for package in PACKAGES:
        try:
            known[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    if has_gpu:
        known |= {"cuda": str(torch.version.cuda), "driver": _driver()}
        major, minor = torch.cuda.get_device_capability()
        known["compute capability"] = f"{major}.{minor}"
    return known


def _driver() -> str:
    import ctypes

    version = ctypes.c_int()
    ctypes.CDLL("libcuda.so.1").cuDriverGetVersion(ctypes.byref(version))
    return f"CUDA {version.value // 1000}.{version.value % 1000 // 10}"
