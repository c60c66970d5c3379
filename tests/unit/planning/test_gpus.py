"""The table of GPUs: every row has its sources, and figures that do not contradict each other or the hardware."""

from __future__ import annotations

import re

import pytest

from trtkit.errors import PlanError
from trtkit.planning.gpus import PlannedGpu, find_gpus, planned_gpus

KEYS = "t4 a10 rtx3090 a100-40 a100-80 l4 l40s rtx4090 h100 h200 b200 rtx5090 gb10 orin thor".split()  # noqa: SIM905
every_gpu = pytest.mark.parametrize("gpu", planned_gpus(), ids=lambda gpu: gpu.key)


def test_all_gpus_of_the_plan_are_there() -> None:
    assert [gpu.key for gpu in planned_gpus()] == KEYS


@every_gpu
def test_row_names_its_sources_and_when_they_were_read(gpu: PlannedGpu) -> None:
    assert gpu.sources
    assert all(re.match(r"https?://[\w.-]+/", source) for source in gpu.sources)
    assert re.fullmatch(r"20\d\d-\d\d-\d\d", gpu.read)


@every_gpu
def test_narrower_types_are_not_slower(gpu: PlannedGpu) -> None:
    order = [gpu.rates[name] for name in ("fp32", "tf32", "fp16", "fp8", "fp4") if name in gpu.rates]
    assert order == sorted(order)
    if "bf16" in gpu.rates and "fp16" in gpu.rates:
        assert gpu.rates["bf16"] == gpu.rates["fp16"]


@every_gpu
def test_rates_are_not_the_sparse_ones(gpu: PlannedGpu) -> None:
    # Tensor cores do twice the work of FP32 units on GeForce cards, 32 times on data-centre Blackwell.
    if "fp16" in gpu.rates:
        assert 1.99 <= gpu.rates["fp16"] / gpu.rates["fp32"] <= 32
    if "fp8" in gpu.rates and "fp16" in gpu.rates:
        assert gpu.rates["fp8"] / gpu.rates["fp16"] == pytest.approx(2, rel=0.02)


@every_gpu
def test_backends_and_types_follow_from_the_compute_capability(gpu: PlannedGpu) -> None:
    assert "tensorrt" in gpu.backends
    assert ("tensorrt_rtx" in gpu.backends) == (gpu.compute_capability in (75, 80, 86, 89, 120, 121))
    assert gpu.untested_backends == (("tensorrt_rtx",) if gpu.compute_capability == 80 else ())
    assert gpu.takes("fp8") == (gpu.compute_capability >= 89)
    assert gpu.takes("int4") == (gpu.compute_capability >= 80)
    assert gpu.takes("fp4") == (gpu.key in ("b200", "rtx5090", "gb10", "thor"))


def test_ridge_is_the_one_of_the_published_h100_drill() -> None:
    (h100,) = find_gpus(["H100"])
    assert h100.ridge("bf16") == pytest.approx(295, abs=1)  # 989 TFLOPS over 3.35 TB/s
    assert find_gpus(["gb10"])[0].ridge("bf16") is None


def test_unknown_gpu_names_its_neighbours() -> None:
    with pytest.raises(PlanError) as error:
        find_gpus(["h200", "h20"])
    assert str(error.value).startswith("--gpu: unknown GPU `h20`\nfix: did you mean `h200`")
    assert error.value.fix.endswith(f"known: {', '.join(KEYS)}")
    with pytest.raises(PlanError, match="unknown GPU `radeon`") as error:
        find_gpus(["radeon"])
    assert error.value.exit_code == 2


def test_names_may_be_written_in_other_ways_and_twice() -> None:
    assert [gpu.key for gpu in find_gpus([" RTX 4090", "a100_80", "rtx4090"])] == ["rtx4090", "a100-80"]
