"""Put the simulated runtime in TensorRT's place."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from tests.simulated_tensorrt import interface
from tests.simulated_tensorrt.plans import Plans
from tests.simulated_tensorrt.runtime import SimulatedRuntime
from trtkit.backends import load_backend
from trtkit.errors import BackendError
from trtkit.runtime import device as devices
from trtkit.runtime.host_device import HostDevice

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.simulated_tensorrt.gpu import SimulatedGpu

    Replace = Callable[[Any, str, Any], object]


@dataclass(frozen=True, eq=False)
class Simulated:
    """A device, and the plans that can be loaded there. runtimes: those that were made, with their engines.

    device: a SimulatedGpu has of a HostDevice what engines use.
    """

    device: HostDevice = field(default_factory=HostDevice)
    plans: Plans = field(default_factory=Plans)
    runtimes: list[SimulatedRuntime] = field(default_factory=list)

    def runtime(self, trt: Any, logger: Any) -> SimulatedRuntime:
        """Return a Runtime."""
        self.runtimes.append(SimulatedRuntime(trt, self.device, self.plans, logger))
        return self.runtimes[-1]


def simulate(replace: Replace, device: HostDevice | SimulatedGpu | None = None) -> Simulated:
    """Let engines run on host memory, or on `device`, in this process. Builders stay TensorRT's own.

    replace: sets an attribute, such as pytest's `monkeypatch.setattr`.
    """
    trt, simulated = load_backend("tensorrt_rtx").trt, Simulated(cast("HostDevice", device or HostDevice()))
    replace(trt, "Runtime", partial(simulated.runtime, trt))
    replace(devices, "find_device", lambda _index=None: simulated.device)
    return simulated


def load_interface() -> str:
    """Load TensorRT-RTX, or take its interface's place if it does not load; return why it does not, else nothing."""
    try:
        load_backend("tensorrt_rtx")
    except BackendError as error:
        sys.modules["tensorrt_rtx"] = interface
        interface.fault = str(error).splitlines()[0]
    return interface.fault
