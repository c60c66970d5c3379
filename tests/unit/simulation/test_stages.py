"""Stages in turn on a virtual clock: step by step by hand, in blocks, and as the plan has them."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest

from tests.unit.planning.test_plan_properties import LLAMA, question
from trtkit.errors import SimulationError
from trtkit.llm.offload.schedule import BlockSchedule
from trtkit.llm.scheduler import DEFAULT_SCHEDULE
from trtkit.models.parallel import Grid
from trtkit.planning.gpus import find_gpus
from trtkit.planning.offload import block_plan, plan_offload
from trtkit.planning.question import Host, PlanningQuestion
from trtkit.planning.roofline import floor
from trtkit.simulation.fleet import FleetOptions, simulate
from trtkit.simulation.machine import MachineOptions
from trtkit.simulation.requests import Traffic
from trtkit.simulation.stages import Block, replica_in_turn
from trtkit.simulation.summary import summarize

if TYPE_CHECKING:
    from trtkit.simulation.record import Record

(T4,) = find_gpus(["t4"])
LINK, READ, WRITE = 15.76e9, 2e9, 1e9
HOST = Host(10**12, READ, WRITE)
SLOTS, PART = 8, 2


def in_turn(traffic: Traffic, block: Block, **changes: object) -> tuple[PlanningQuestion, Record]:
    asked = replace(question(LLAMA, concurrency=1), host=HOST)
    options = MachineOptions(**changes)  # type: ignore[arg-type]
    replica, _ = replica_in_turn(asked, T4, options, block, DEFAULT_SCHEDULE)
    return asked, simulate(traffic, FleetOptions(replica, 1, "least-loaded", 0, 0.0))


def at_once(asked: PlanningQuestion, count: int) -> Traffic:
    work = asked.work
    return Traffic(np.zeros(count), np.full(count, work.chunk), np.full(count, work.output_len))


def by_hand(asked: PlanningQuestion, place: str, new: int, cached: int) -> float:
    """Return the seconds of a pass, by its steps one by one."""
    model, schedule, total = asked.model, BlockSchedule(asked.model.layers, SLOTS // PART), 0.0
    computes = floor(asked.counts, asked.work.call(PART, new, cached + new), T4).seconds / schedule.stages
    per_token = PART * model.kv_bytes_per_token / schedule.stages
    for step in schedule.steps():
        lanes = dict.fromkeys(("compute", "up", "down", "read", "write"), 0.0)
        lanes["compute"] += computes * (step.computes is not None)
        lanes["up"] += model.weight_bytes / schedule.stages / schedule.micro_batches / LINK * (step.loads is not None)
        if place != "device" and step.fetches is not None:
            lanes["up"] += per_token * cached / LINK
            lanes["read"] += per_token * cached / READ * (place == "disk")
        if place != "device" and step.stores is not None:
            lanes["down"] += per_token * new / LINK
            lanes["write"] += per_token * new / WRITE * (place == "disk")
        total += max(lanes.values())
    return total


@pytest.mark.parametrize("place", ["device", "host", "disk"])
def test_a_block_takes_the_sum_of_its_passes(place: str) -> None:
    asked = replace(question(LLAMA, concurrency=1), host=HOST)
    traffic = at_once(asked, SLOTS)
    _, record = in_turn(traffic, Block(place, SLOTS, PART))  # type: ignore[arg-type]
    prompt, answer = asked.work.chunk, asked.work.output_len
    first_s = by_hand(asked, place, prompt, 0)
    assert record.first_token_s == pytest.approx(np.full(SLOTS, first_s))
    seconds = first_s + sum(by_hand(asked, place, 1, prompt + step) for step in range(answer - 1))
    assert record.finished_s == pytest.approx(np.full(SLOTS, seconds))


def test_a_block_begins_when_the_last_answer_of_the_one_before_is_complete() -> None:
    lengths = np.array([5, 9, 3, 2, 4, 4])
    traffic = Traffic(np.zeros(6), np.full(6, 16), lengths)
    _, record = in_turn(traffic, Block("host", 3, 1))
    first, second = record.first_token_s[:3], record.first_token_s[3:]
    assert len(set(first)) == len(set(second)) == 1
    assert second[0] > record.finished_s[:3].max() > first[0]
    assert np.argsort(record.finished_s[:3]).tolist() == [2, 0, 1]


@pytest.mark.parametrize("place", ["device", "host", "disk"])
def test_the_best_block_is_as_fast_as_the_plan_says(place: str) -> None:
    asked = replace(question(LLAMA, concurrency=1), host=HOST)
    plan = next(each for each in plan_offload(asked, T4) if each.caches == place)
    count = plan.micro_batch * plan.micro_batches
    work = asked.work
    traffic = Traffic(np.zeros(count), np.full(count, work.input_len), np.full(count, work.output_len))
    replica, chosen = replica_in_turn(asked, T4, MachineOptions(), Block(place), DEFAULT_SCHEDULE)  # type: ignore[arg-type]
    assert chosen == plan
    fleet = FleetOptions(replica, 1, "least-loaded", 0, 0.0)
    summary = summarize(traffic, simulate(traffic, fleet), fleet, {})
    # the plan takes every step at the mean length, and chunks of prompts at the mean of theirs
    assert summary.output_tokens_per_second == pytest.approx(plan.output_tokens_per_second, rel=0.03)
    assert (summary.most_running, summary.waiting) == (count, 0)


def test_slower_kernels_and_calls_take_longer() -> None:
    traffic = Traffic(np.zeros(SLOTS), np.full(SLOTS, 64), np.full(SLOTS, 4))
    block = Block("device", SLOTS, PART)
    asked, record = in_turn(traffic, block)
    _, slower = in_turn(traffic, block, overhead_s=1.0)
    passes, cells = 4, asked.model.layers * SLOTS // PART
    assert slower.last_s == pytest.approx(passes * (cells * 1.0), rel=0.05)
    assert in_turn(traffic, block, efficiency=1e-6)[1].last_s > 1000 * record.last_s


@pytest.mark.parametrize(
    ("block", "changes", "message"),
    [
        (Block("host", 4, 5), {}, r"--micro-batch: 5 sequences are not a micro-batch of 4 slots"),
        (Block("host", 10**6, 10**6), {}, r"--offload: no block of .* with caches on host fits T4 and its host"),
        (Block("host"), {"grid": Grid(pipeline=2)}, r"--offload: stages run in turn if there are 3 or more; .* has 2"),
        (Block("host"), {"grid": Grid(2, pipeline=3)}, r"--offload: stages in turn are of one rank; the grid has 2"),
    ],
)
def test_blocks_that_cannot_run_are_refused(block: Block, changes: dict[str, object], message: str) -> None:
    asked = replace(question(LLAMA, concurrency=1), host=HOST, **changes)  # type: ignore[arg-type]
    with pytest.raises(SimulationError, match=message):
        replica_in_turn(asked, T4, MachineOptions(), block, DEFAULT_SCHEDULE)


def test_a_gpu_whose_link_is_not_known_is_refused() -> None:
    asked = replace(question(LLAMA, concurrency=1), host=HOST)
    with pytest.raises(SimulationError, match="the link of T4 to its host is not known"):
        replica_in_turn(asked, replace(T4, host_link=""), MachineOptions(), Block("host"), DEFAULT_SCHEDULE)


def test_slots_without_a_micro_batch_are_divided_as_the_engine_does() -> None:
    asked = replace(question(LLAMA, concurrency=1), host=HOST)
    for place, size in (("device", 8), ("host", 2), ("disk", 2)):
        _, plan = replica_in_turn(asked, T4, MachineOptions(), Block(place, 8), DEFAULT_SCHEDULE)  # type: ignore[arg-type]
        assert plan == block_plan(asked, T4, place, size, 8 // size)  # type: ignore[arg-type]
