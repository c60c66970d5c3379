"""The table of GPUs: every row has its sources, and figures that do not contradict each other or the hardware."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trtkit.errors import PlanError
from trtkit.planning.gpus import PlannedGpu, Ring, find_gpus, known_links, planned_gpus, send_s

KEYS = (  # noqa: SIM905
    "v100 t4 a10 a30 a40 a6000 rtx3090 a100-40 a100-80 l4 l40 l40s rtx4090 h100 h100pcie h20 h200 b200 gb200 b300 "
    "gb300 rtx5090 gb10 orin thor mi300x m2ultra br100"
).split()
OTHERS = {"mi300x", "m2ultra", "br100"}
"""Of other makers."""
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
    assert ("tensorrt" in gpu.backends) == (gpu.compute_capability >= 75)
    assert ("tensorrt_rtx" in gpu.backends) == (gpu.compute_capability in (75, 80, 86, 89, 120, 121))
    assert gpu.untested_backends == (("tensorrt_rtx",) if gpu.compute_capability == 80 else ())
    assert gpu.takes("fp8") == (gpu.compute_capability >= 89 or gpu.key == "mi300x")
    assert gpu.takes("int4") == (gpu.compute_capability >= 80)
    assert gpu.takes("fp4") == (gpu.key in ("b200", "gb200", "b300", "gb300", "rtx5090", "gb10", "thor"))


def test_ridge_is_the_one_of_the_published_h100_drill() -> None:
    (h100,) = find_gpus(["H100"])
    assert h100.ridge("bf16") == pytest.approx(295, abs=1)  # 989 TFLOPS over 3.35 TB/s
    assert find_gpus(["gb10"])[0].ridge("bf16") is None


def test_unknown_gpu_names_its_neighbours() -> None:
    with pytest.raises(PlanError) as error:
        find_gpus(["h200", "h210"])
    assert str(error.value).startswith("--gpu: unknown GPU `h210`\nfix: did you mean `h20")
    assert error.value.fix.endswith("? all: `trtkit plan --list-gpus`")
    with pytest.raises(PlanError, match="unknown GPU `radeon`") as error:
        find_gpus(["radeon"])
    assert error.value.exit_code == 2


def test_names_may_be_written_in_other_ways_and_twice() -> None:
    assert [gpu.key for gpu in find_gpus([" RTX 4090", "a100_80", "rtx4090", "H100-PCIe"])] == [
        "rtx4090",
        "a100-80",
        "h100pcie",
    ]


LINKS = known_links().links
NVLINK, PCIE, NETWORK = LINKS["nvlink4"], LINKS["pcie4"], LINKS["infiniband"]


def test_a_small_all_reduce_takes_the_low_latency_protocol() -> None:
    """2 * 7 hops of 0.47 us after 3.6 us; 64 KiB at a quarter of 450 GB/s."""
    sent = 2 * 7 / 8 * 65536
    assert Ring(NVLINK, NETWORK, 8).all_reduce_s(65536) == pytest.approx(10.18e-6 + sent / (450e9 / 4))


def test_a_large_all_reduce_takes_the_whole_bandwidth() -> None:
    """2 * 7 hops of 3.4 us after 8.4 us."""
    sent = 2 * 7 / 8 * 2**30
    assert Ring(NVLINK, NETWORK, 8).all_reduce_s(2**30) == pytest.approx(56e-6 + sent / 450e9)


def test_a_ring_over_two_nodes_passes_the_network_twice() -> None:
    """14 hops within nodes and 2 between for each of two rounds; the network is the slowest."""
    ring = Ring(NVLINK, NETWORK, 16)
    assert ring.nodes == 2
    assert ring.all_reduce_s(0) == pytest.approx((3.6 + 28 * 0.47 + 2 * 2.7) * 1e-6)
    assert ring.all_reduce_s(2**30) > 2 * 15 / 16 * 2**30 / 50e9


def test_one_gpu_sends_nothing() -> None:
    assert Ring(PCIE, NETWORK, 1).all_reduce_s(2**20) == 0
    assert Ring(PCIE, NETWORK, 1).all_gather_s(2**20) == 0


@given(st.integers(2, 64), st.integers(0, 2**32), st.integers(0, 2**20))
def test_times_grow_with_size_and_an_all_gather_is_half_an_all_reduce(gpus: int, size: int, more: int) -> None:
    ring = Ring(PCIE, NETWORK, gpus)
    assert ring.all_reduce_s(size) <= ring.all_reduce_s(size + more)
    assert ring.all_gather_s(size) <= ring.all_reduce_s(size) <= 2 * ring.all_gather_s(size)
    assert send_s(PCIE, size) <= send_s(PCIE, size + more)


def test_every_gpu_names_a_link_of_the_table_or_none() -> None:
    named = {gpu.link for gpu in planned_gpus()} - {""}
    assert named <= set(LINKS)
    assert {gpu.key for gpu in planned_gpus() if not gpu.link} == {"v100", "gb10", "orin", "thor", *OTHERS}
    assert all(link.source.startswith("https://") for link in LINKS.values())
