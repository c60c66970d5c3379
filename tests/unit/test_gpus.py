"""GPUs are asked of NVML: the binding is real, the driver's library behind it is not there."""

from __future__ import annotations

from types import SimpleNamespace

import pynvml
import pytest

from trtkit.backends.gpu import Gpu, driver_version, list_gpus


def test_a_machine_without_a_driver_has_no_gpus() -> None:
    with pytest.raises(pynvml.NVMLError):
        pynvml.nvmlInit()
    assert list_gpus() == ()
    assert driver_version() is None


def test_gpus_are_what_the_driver_says(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = {
        "nvmlInit": lambda: None,
        "nvmlShutdown": lambda: None,
        "nvmlSystemGetDriverVersion": lambda: "580.95.05",
        "nvmlDeviceGetCount": lambda: 2,
        "nvmlDeviceGetHandleByIndex": lambda index: index,
        "nvmlDeviceGetName": lambda index: ("NVIDIA L4", "NVIDIA H200")[index],
        "nvmlDeviceGetCudaComputeCapability": lambda index: ((8, 9), (9, 0))[index],
        "nvmlDeviceGetMemoryInfo": lambda index: SimpleNamespace(total=(23034 << 20, 143771 << 20)[index]),
    }
    for name, answer in answers.items():
        monkeypatch.setattr(pynvml, name, answer)
    assert list_gpus() == (Gpu("NVIDIA L4", 23034, 89, "580.95.05"), Gpu("NVIDIA H200", 143771, 90, "580.95.05"))


def test_a_gpu_that_fell_off_the_bus_is_not_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_GPU_IS_LOST)

    for name in ("nvmlInit", "nvmlShutdown"):
        monkeypatch.setattr(pynvml, name, lambda: None)
    monkeypatch.setattr(pynvml, "nvmlSystemGetDriverVersion", fail)
    assert list_gpus() == ()
