"""Ceilings: measured rates, GPUs by the driver's names, layers beside their floors."""

from __future__ import annotations

import itertools
from types import SimpleNamespace

import numpy as np
import pytest

from tests.support.pages import Page, rows_with, svg
from trtkit.benchmarking import ceiling
from trtkit.benchmarking.ceiling import largest_gaps, layer_times, median_seconds
from trtkit.benchmarking.ceiling_report import MeasuredRates, PhaseLayers, PublishedRates
from trtkit.planning.counts import GroupCounts, Multilinear, NetworkCounts
from trtkit.planning.gpus import find_gpus, gpu_of_device
from trtkit.report.benchmark import roofline_plots
from trtkit.report.page import PageOrigin, page

POINT = (1, 0, 0)


def constant(value: int) -> Multilinear:
    return Multilinear((value, 0, 0, 0, 0, 0, 0, 0))


def group(name: str, flops: int, moved: int) -> GroupCounts:
    return GroupCounts(name, 1, constant(flops), {"fp32": constant(flops)}, constant(moved), 0)


COUNTS = NetworkCounts(
    (group("conv", 4000, 100), group("relu", 0, 300), group("tiny", 1, 1)), constant(400), constant(0), ()
)
MACHINE = MeasuredRates("x", {"fp32": 1e6}, 1e5, 2e5)


def test_a_layer_is_held_against_the_slower_of_compute_and_memory() -> None:
    rows = layer_times(COUNTS, POINT, MACHINE, {"conv": 0.008, "relu": 0.0015, "reshape": 0.001, "tiny": 0.01})
    assert [row.floor_ms for row in rows] == pytest.approx([4.0, 1.5, 0.0, 0.005])
    assert [row.bound for row in rows] == ["compute", "memory", "overhead", "overhead"]
    gaps = largest_gaps(rows)
    assert [(gap.layer, gap.gap_ms) for gap in gaps] == [
        ("tiny", pytest.approx(9.995)),
        ("conv", pytest.approx(4.0)),
        ("reshape", pytest.approx(1.0)),
    ]
    assert gaps[1].reached == pytest.approx(0.5)


def test_a_fused_layer_of_an_engine_computes_all_its_parts_and_moves_the_largest() -> None:
    (row,) = layer_times(COUNTS, POINT, MACHINE, {"conv + relu": 0.01})
    assert (row.flops, row.bytes, row.layers) == (4000, 300, 2)
    assert row.floor_ms == pytest.approx(4.0)


@pytest.mark.parametrize("key", ["h200", "t4"])
def test_a_report_draws_every_roof_of_a_gpu_and_its_layers_below(key: str) -> None:
    (gpu,) = find_gpus([key])
    rows = layer_times(COUNTS, POINT, gpu, {"conv": 1e-4, "relu": 1e-5})
    phase = PhaseLayers("run", 4001, 400, rows, largest_gaps(rows))
    ceiling = PublishedRates("x", dict(gpu.rates), gpu.bandwidth_bytes_per_s, gpu.sources)
    drawn = Page(page("rooflines", roofline_plots(ceiling, [phase]), PageOrigin("trtkit bench x")))
    roofline, timeline = drawn.specs
    roofs = rows_with(roofline, "roof")
    assert len(roofs) == 3 * len(gpu.rates)
    layers = rows_with(roofline, "Layer")
    assert [row["Layer"] for row in layers] == ["conv", "whole network, fused"]  # those that compute
    assert max(row["rate"] for row in layers) < max(row["rate"] for row in roofs)
    assert [row["Layer"] for row in rows_with(timeline, "start")] == ["conv", "relu"]
    assert {"conv", "relu", "0.1 ms", "10 \u00b5s", "4 kOP"} <= set(drawn.cells)
    assert svg(roofline).count('aria-roledescription="circle"') == 2


def test_layers_are_timed_by_their_medians_behind_a_first_run() -> None:
    runs = iter([{"a": 100.0}, *({"a": float(value)} for value in (3, 1, 2, 9, 4, 5, 6))])
    assert median_seconds(lambda: next(runs)) == {"a": np.median([3, 1, 2, 9, 4, 5, 6])}


def test_this_machines_rates_are_work_by_the_time_of_the_fastest_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """A first call that takes 0.75 s and a second that takes 0.25 s, by the times that are asked for around them."""
    ticks = itertools.accumulate(itertools.cycle([0, 0, 0, 0.75, 0, 0, 0.25, 0]))
    monkeypatch.setattr(ceiling, "time", SimpleNamespace(perf_counter=lambda: next(ticks)))
    machine = ceiling.measure_machine(["bf16", "int8"])
    assert machine.operations_per_s == {"fp32": 8 * 768**3, "bf16": 8 * 768**3}
    assert (machine.copy_bytes_per_s, machine.read_bytes_per_s) == (8 * 2**26, 4 * 2**26)  # of 2**24 floats
    assert machine.rate("int8") == machine.rate("fp32")
    assert "torch matmul fp32" in machine.said


@pytest.mark.parametrize(
    ("name", "gigabytes", "key"),
    [
        ("NVIDIA H200", 150.1, "h200"),
        ("NVIDIA A100-SXM4-80GB", 85.1, "a100-80"),
        ("NVIDIA A100-SXM4-40GB", 42.4, "a100-40"),
        ("Tesla T4", 15.8, "t4"),
        ("NVIDIA GeForce RTX 4090", 25.3, "rtx4090"),
        ("NVIDIA L40S", 47.7, "l40s"),
        ("NVIDIA H100 80GB HBM3", 85.0, "h100"),
    ],
)
def test_a_driver_names_a_gpu_of_the_table(name: str, gigabytes: float, key: str) -> None:
    assert gpu_of_device(name, round(gigabytes * 1e9)) == find_gpus([key])[0]


@pytest.mark.parametrize(
    ("name", "gigabytes"),
    [
        ("NVIDIA H100 PCIe", 85),
        ("NVIDIA GeForce RTX 4090 D", 25),
        ("NVIDIA GeForce RTX 4090 Laptop GPU", 17),
        ("NVIDIA A10G", 24),
        ("NVIDIA H200", 75),  # half of one
        ("Radeon", 24),
    ],
)
def test_other_makes_have_other_rates(name: str, gigabytes: float) -> None:
    assert gpu_of_device(name, round(gigabytes * 1e9)) is None
