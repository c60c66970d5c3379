"""Rules for which steps run on a machine, and what computes them there."""

from __future__ import annotations

import os
import shutil
import sysconfig
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from trtkit.backends import BACKENDS, runs_on, supported_gpus

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from tests.gpu.step import Step

BACKEND = "tensorrt_rtx"


@dataclass(frozen=True)
class Machine:
    """name: the GPU's, or `CPU`. compute_capability: 10 * major + minor; None without a GPU.

    fault: why TensorRT-RTX does not load. no_kernels: why Triton cannot compile kernels. Both empty if they work.
    """

    name: str
    compute_capability: int | None
    fault: str = ""
    no_kernels: str = ""

    @property
    def torch(self) -> str:
        """The device that torch computes on, for people."""
        return "torch on CPU" if self.compute_capability is None else f"torch on CUDA ({self.name})"

    @property
    def no_engines(self) -> str:
        """Why TensorRT-RTX's engines cannot run here; empty if they can."""
        if self.compute_capability is None:
            return "there is no GPU"
        if self.fault:
            return self.fault
        if runs_on(BACKEND, self.compute_capability):
            return ""
        present = f"{self.compute_capability / 10:.1f}"
        only = f"`{BACKEND}` runs on GPUs of compute capability {supported_gpus(BACKEND)}"
        return f"{only}; {present} needs full TensorRT, which the kit does not carry"


CPU = Machine("CPU", None)


def why_skipped(step: Step, machine: Machine) -> str:
    """Return why a step cannot run on a machine; empty if it can."""
    if step.name == "load" and machine.compute_capability is not None:
        return machine.fault  # TensorRT reports whether it supports this GPU
    if step.needs == "engines" and not step.simulates:
        return machine.no_engines
    return machine.no_kernels if step.needs == "kernels" and machine.compute_capability is not None else ""


def computed_by(step: Step, machine: Machine) -> str:
    """Return what computes a step's answers."""
    if step.simulates:
        return f"simulated TensorRT, {machine.torch}"
    if step.needs == "engines":
        return f"TensorRT-RTX on {machine.name}"
    triton = "Triton" if machine.compute_capability is not None else "Triton's interpreter"
    return f"{triton}, {machine.torch}" if step.needs == "kernels" else machine.torch


def why_no_kernels() -> str:
    """Return why Triton cannot compile kernels here; empty if it can. It needs a C compiler for its launcher."""
    if not any(map(shutil.which, (os.environ.get("CC", "gcc"), "gcc", "clang"))):
        return "Triton needs a C compiler, and there is neither gcc nor clang: install one, or set CC"
    header = Path(sysconfig.get_path("include")) / "Python.h"
    return "" if header.exists() else f"Triton needs Python.h, and {header} does not exist: install Python's headers"


def what_if(steps: Iterable[Step], version: str) -> Iterator[str]:
    """Yield a line per step: what would compute it on a GPU of compute capability `version`, such as `9.0`, or why not.

    Raises ValueError for a malformed version.
    """
    major, _, minor = version.partition(".")
    machine = Machine(f"a GPU of {version}", 10 * int(major) + int(minor or 0))
    if machine.compute_capability in BACKENDS[BACKEND].features.untested:
        yield f"{version} is untested: TensorRT-RTX's loader takes it, NVIDIA's support matrices do not list it"
    for step in steps:
        reason = why_skipped(step, machine)
        yield f"{step.name:34} {f'skipped: {reason}' if reason else computed_by(step, machine)}"
