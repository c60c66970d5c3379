"""The NVIDIA GPUs and driver of this machine, from the driver's own library, NVML."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Gpu:
    """One GPU. compute_capability is 10 * major + minor."""

    name: str
    memory_mib: int
    compute_capability: int
    driver: str


def list_gpus() -> tuple[Gpu, ...]:
    """Return the GPUs present; none without a driver."""
    import pynvml

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return ()
    try:
        driver = pynvml.nvmlSystemGetDriverVersion()
        handles = [pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(pynvml.nvmlDeviceGetCount())]
        gpus = []
        for handle in handles:
            major, minor = pynvml.nvmlDeviceGetCudaComputeCapability(handle)
            memory_mib = pynvml.nvmlDeviceGetMemoryInfo(handle).total >> 20
            gpus.append(Gpu(pynvml.nvmlDeviceGetName(handle), memory_mib, 10 * major + minor, driver))
    except pynvml.NVMLError:
        return ()
    finally:
        pynvml.nvmlShutdown()
    return tuple(gpus)


def driver_version() -> str | None:
    """Return the NVIDIA driver's version; None without a driver."""
    gpus = list_gpus()
    return gpus[0].driver if gpus else None
