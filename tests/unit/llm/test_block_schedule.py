"""FlexGen's schedule keeps every dependency and its bounds of memory, whatever the sizes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trtkit.llm.offload.schedule import LANES, BlockSchedule, Cell, StepSeconds, pass_time

schedules = st.builds(BlockSchedule, st.integers(3, 9), st.integers(1, 7))


@given(schedules, st.integers(1, 4))
def test_each_stage_computes_each_token_of_each_micro_batch_once_after_what_it_reads(
    schedule: BlockSchedule, tokens: int
) -> None:
    computed: set[tuple[int, Cell]] = set()
    for token in range(tokens):
        for step in schedule.steps():
            if (cell := step.computes) is None:
                continue
            assert (token, cell) not in computed
            if cell.stage:
                assert (token, Cell(cell.stage - 1, cell.micro_batch)) in computed  # its hidden states
            elif token:
                assert (token - 1, Cell(schedule.stages - 1, cell.micro_batch)) in computed  # the token itself
            computed.add((token, cell))
    assert len(computed) == tokens * schedule.stages * schedule.micro_batches


@given(schedules, st.integers(1, 3))
def test_weights_are_loaded_once_for_all_micro_batches_and_two_stages_are_in_memory_at_most(
    schedule: BlockSchedule, tokens: int
) -> None:
    shares = {0: schedule.micro_batches}  # of a stage, that have arrived
    loads = 0
    for _ in range(tokens):
        for step in schedule.steps():
            if step.computes is not None:
                assert shares[step.computes.stage] == schedule.micro_batches
            if step.loads is not None:
                assert step.loads not in shares or shares[step.loads] < schedule.micro_batches
                shares[step.loads] = shares.get(step.loads, 0) + 1
                loads += 1
            assert len(shares) <= 2
            if step.unloads is not None:
                del shares[step.unloads]
    assert list(shares) == [0]
    assert loads == tokens * schedule.stages * schedule.micro_batches


@given(schedules)
def test_caches_are_fetched_before_they_are_read_and_stored_before_their_buffer_is_used_again(
    schedule: BlockSchedule,
) -> None:
    held: dict[int, Cell] = {}
    stored = []
    for step in schedule.steps():
        if (cell := step.computes) is not None:
            assert held[schedule.buffer(cell)] == cell
        if (cell := step.stores) is not None:
            assert held.pop(schedule.buffer(cell)) == cell
            stored.append(cell)
        if (cell := step.fetches) is not None:  # while the others are computed and stored
            busy = {schedule.buffer(other) for other in (step.computes, step.stores) if other is not None}
            assert schedule.buffer(cell) not in busy
            held[schedule.buffer(cell)] = cell
        assert len(held) <= schedule.buffers
    assert stored == [Cell(stage, k) for stage in range(schedule.stages) for k in range(schedule.micro_batches)]
    assert not held


@given(schedules, *[st.floats(0, 10) for _ in range(4)])
def test_a_pass_takes_its_slowest_lane_at_least_and_the_sum_of_all_at_most(
    schedule: BlockSchedule, computes: float, link: float, disk: float, caches: float
) -> None:
    seconds = StepSeconds(computes, {"to_device": link, "read": disk}, {"to_device": caches}, {"to_host": caches})
    time = pass_time(schedule, seconds)
    cells = schedule.stages * schedule.micro_batches
    assert time.busy == pytest.approx({
        "compute": cells * computes,
        "to_device": schedule.stages * link + cells * caches,
        "to_host": cells * caches,
        "read": schedule.stages * disk,
        "write": 0,
    })  # fmt: skip
    assert time.busy[time.bottleneck] <= time.seconds * (1 + 1e-9)
    assert time.seconds <= sum(time.busy.values()) * (1 + 1e-9)
    assert set(time.busy) == set(LANES)


def test_a_pass_by_hand() -> None:
    """3 stages of 2 micro-batches: 1 s to compute one, 3 s to load a stage, of which each step has a half."""
    seconds = StepSeconds(1.0, {"to_device": 3.0}, {}, {})
    assert pass_time(BlockSchedule(3, 2), seconds).seconds == 6 * 1.5
    assert pass_time(BlockSchedule(3, 4), seconds).seconds == 12 * 1.0  # the load hides behind four
    fetched = StepSeconds(1.0, {"to_device": 3.0}, {"to_device": 0.25}, {})
    assert pass_time(BlockSchedule(3, 4), fetched).seconds == 0.25 + 12 * 1.0
