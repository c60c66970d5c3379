"""The NVIDIA GPUs and driver of this machine, asked of `nvidia-smi`."""

import shutil
import subprocess
from dataclasses import dataclass


@dataclass(frozen=True)
class Gpu:
    """One GPU. compute_capability is 10 * major + minor."""

    name: str
    memory_mib: int
    compute_capability: int
    driver: str


def list_gpus() -> tuple[Gpu, ...]:
    """Return the GPUs present, none if there is no driver."""
    command = shutil.which("nvidia-smi")
    if command is None:
        return ()
    query = [command, "--query-gpu=name,memory.total,compute_cap,driver_version", "--format=csv,noheader,nounits"]
    try:
        answer = subprocess.run(query, capture_output=True, text=True, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ()
    return tuple(_parse(line) for line in answer.stdout.splitlines() if line.count(",") == 3)


def driver_version() -> str | None:
    """Return the NVIDIA driver's version, None if there is none."""
    gpus = list_gpus()
    return gpus[0].driver if gpus else None


def _parse(line: str) -> Gpu:
    """Read one CSV line: name, MiB, `9.0`, driver."""
    name, memory, capability, driver = (field.strip() for field in line.split(","))
    major, _, minor = capability.partition(".")
    return Gpu(name, int(memory), 10 * int(major) + int(minor), driver)
