"""Times of links: NCCL's constants in the published model of a ring."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trtkit.planning.gpus import planned_gpus
from trtkit.planning.links import Ring, known_links, send_s

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
    assert {gpu.key for gpu in planned_gpus() if not gpu.link} == {"gb10", "orin", "thor"}
    assert all(link.source.startswith("https://") for link in LINKS.values())
