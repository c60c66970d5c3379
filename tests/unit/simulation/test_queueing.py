"""The simulator against theory: formulas of queues, times that can be added up by hand, and laws of direction."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trtkit.llm.scheduler import ScheduleOptions, SchedulingParams
from trtkit.simulation.fleet import ROUTERS, FleetOptions, simulate
from trtkit.simulation.replica_options import ReadWindows, ReplicaOptions
from trtkit.simulation.requests import Traffic
from trtkit.simulation.summary import summarize
from trtkit.simulation.times import MeasuredTimes, decode_s

if TYPE_CHECKING:
    from trtkit.simulation.record import Record

TIMES = MeasuredTimes(0.01, 1e-4, 1e-7, 2e-3, 1e-4)


def poisson(rate: float, count: int, seed: int = 0, inputs: int = 100, outputs: int = 50) -> Traffic:
    r = np.random.default_rng(seed)
    lengths = r.integers(1, 2 * inputs, count), r.integers(1, 2 * outputs, count)
    return Traffic(np.cumsum(r.exponential(1 / rate, count)), *lengths)


def mean_latency(traffic: Traffic, record: Record) -> float:
    return float(np.mean(record.finished_s - traffic.arrival_s))


def serve(traffic: Traffic, *, replicas: int = 1, slots: int = 8, **options: object) -> Record:
    return simulate(traffic, FleetOptions(ReplicaOptions(TIMES, slots, 1024, **options), replicas))  # type: ignore[arg-type]


def test_a_packed_engine_reads_whole_tiles_and_computes_idle_tokens() -> None:
    """A prompt of 700 tokens with a budget of 512: a call of 511 and an idle row, and one of 189 and 3 idle tokens."""
    record = serve(Traffic(np.array([3.0]), np.array([700]), np.array([5])), is_packed=True, token_tile=64)
    calls_s = TIMES.prefill_s(1, 511, 511) + TIMES.prefill_s(1, 189, 700) + (1 + 3) * 1e-4
    assert record.first_token_s[0] == pytest.approx(3.0 + calls_s)


@pytest.mark.parametrize("load", [0.5, 0.8])
def test_the_mean_wait_of_m_d_1_is_that_of_pollaczek_and_khinchine(load: float) -> None:
    """One slot, every request takes one step of 10 ms: W = load * service / (2 * (1 - load))."""
    count, service_s = 30_000, 0.01
    arrivals = np.cumsum(np.random.default_rng(1).exponential(service_s / load, count))
    ones = np.ones(count, np.int64)
    traffic = Traffic(arrivals, ones, ones)
    options = ReplicaOptions(MeasuredTimes(service_s), 1, 8)
    record = simulate(traffic, FleetOptions(options))
    wait_s = float(np.mean(record.finished_s - arrivals)) - service_s
    assert wait_s == pytest.approx(load * service_s / (2 * (1 - load)), rel=0.06)


def test_a_single_request_takes_its_prompt_and_a_step_for_each_further_token() -> None:
    record = serve(Traffic(np.array([3.0]), np.array([700]), np.array([5])))
    prefill_s = TIMES.prefill_s(1, 512, 512) + TIMES.prefill_s(1, 188, 700)
    steps_s = sum(0.01 + 1e-4 + 1e-7 * (700 + step) for step in range(4))
    assert record.first_token_s[0] == pytest.approx(3.0 + prefill_s)
    assert record.finished_s[0] == pytest.approx(3.0 + prefill_s + steps_s)
    assert record.steps.busy_s == pytest.approx(prefill_s + steps_s)


@settings(max_examples=100, deadline=None)
@given(
    st.tuples(*(st.floats(1e-6, 1.0) for _ in range(4))),
    st.integers(1, 64),
    st.integers(0, 10_000),
    st.integers(1, 300),
)
def test_many_decode_steps_take_the_sum_of_the_single_ones(
    lines: tuple[float, float, float, float], batch: int, cached: int, steps: int
) -> None:
    pair = (lines[0], lines[1] / 1e4), (lines[2], lines[3] / 1e4)
    total = sum(decode_s(pair, batch, cached + step * batch, 1) for step in range(steps))
    assert decode_s(pair, batch, cached, steps) == pytest.approx(total)


def test_more_replicas_are_never_slower() -> None:
    traffic = poisson(40.0, 1500)
    latencies = [mean_latency(traffic, serve(traffic, replicas=count)) for count in (1, 2, 4, 16)]
    assert latencies == sorted(latencies, reverse=True)
    assert latencies[0] > 5 * latencies[-1]


def test_more_traffic_is_never_faster() -> None:
    latencies = []
    for rate in (1.0, 5.0, 10.0, 40.0):
        traffic = poisson(rate, 1500)
        latencies.append(mean_latency(traffic, serve(traffic)))
    assert latencies == sorted(latencies)


@pytest.mark.parametrize("router", ROUTERS)
@pytest.mark.parametrize("prefill_replicas", [0, 2])
def test_every_request_is_served_once_wherever_it_goes(router: str, prefill_replicas: int) -> None:
    traffic = poisson(30.0, 800)
    options = ReplicaOptions(TIMES, 8, 1024)
    record = simulate(traffic, FleetOptions(options, 3, router, prefill_replicas, 1e-6))  # type: ignore[arg-type]
    assert record.done == len(traffic)
    assert (record.finished_s >= record.first_token_s).all()
    assert (record.first_token_s > traffic.arrival_s).all()
    assert record.steps.gaps.sum() >= (traffic.output_tokens - 1).sum()


@pytest.mark.parametrize("schedule", ["fcfs", "priority", "mlfq"])
@pytest.mark.parametrize("host_tokens", [0, 10**6])
def test_pages_that_run_out_cost_preemptions_and_lose_no_request(schedule: str, host_tokens: int) -> None:
    """70 pages of 16 tokens for requests of up to 398: two or three at once, which outgrow the pages."""
    traffic = poisson(30.0, 600, outputs=100)
    options = {"schedule": ScheduleOptions(schedule), "host_tokens": host_tokens}  # type: ignore[arg-type]
    record = serve(traffic, pages=70, **options)
    assert record.done == len(traffic)
    assert np.isfinite(record.finished_s).all()
    assert record.preemptions > 10
    assert record.steps.used <= record.steps.reserved


def test_a_request_is_moved_to_another_slot_and_preempted_in_the_same_step() -> None:
    """When four of six answers end, the last request moves next to the first, and one of a higher priority begins.

    That one takes so many of the 16 pages that none is left for the first token after the move.
    """
    priorities = [SchedulingParams(priority) for priority in (1, 1, 1, 1, 1, 2, 0)]
    arrivals, outputs = np.array([0.0] * 6 + [8.0]), np.array([30, 5, 5, 5, 5, 30, 5])
    traffic = Traffic(arrivals, np.array([5, 2, 6, 4, 4, 4, 42]), outputs, (), priorities)
    times, schedule = MeasuredTimes(1.0, prefill_call_s=1.0), ScheduleOptions("priority")
    options = ReplicaOptions(times, 6, 64, 64, pages=16, page_tokens=4, schedule=schedule)
    record = simulate(traffic, FleetOptions(options))
    assert record.preemptions == 1
    assert record.finished_s.argmax() == 5
    assert np.isfinite(record.finished_s).all()


def test_pages_are_counted_while_an_answer_grows() -> None:
    """One request, whose steps are simulated together: at most a page's places hold no token at any time."""
    record = serve(Traffic(np.zeros(1), np.array([100]), np.array([700])), pages=70)
    waste = (record.steps.reserved - record.steps.used) / record.steps.busy_s
    assert 0 <= waste <= 16


def test_a_prompt_that_fits_no_replica_is_dropped_and_an_answer_ends_where_the_pages_do() -> None:
    """60 pages of 16 tokens hold 960: one prompt has more, and one has an answer that would need 1,200."""
    traffic = Traffic(np.zeros(3), np.array([100, 970, 900]), np.array([10, 30, 300]))
    record = serve(traffic, pages=60)
    assert (record.done, record.dropped) == (3, 1)
    assert math.isnan(record.finished_s[1])
    assert record.steps.used <= record.steps.reserved


def test_pages_hold_more_sequences_than_slots_and_waste_less() -> None:
    """The memory of 8 slots of 1,024 tokens, as slots and as 512 pages."""
    traffic = poisson(100.0, 1500)
    linear, paged = serve(traffic), serve(traffic, slots=256, pages=512)
    assert linear.steps.most_running == 8
    assert paged.steps.most_running > 24
    assert 1 - paged.steps.used / paged.steps.reserved < 0.12
    assert 1 - linear.steps.used / linear.steps.reserved > 0.8
    assert mean_latency(traffic, paged) < mean_latency(traffic, linear) / 2


@pytest.mark.parametrize("pages", [None, 4096])
def test_shared_beginnings_are_computed_once_and_held_once(pages: int | None) -> None:
    """Prompts of two blocks that all share and a block of their own."""
    count = 200
    hashes = [(1, 2, 100 + number) for number in range(count)]
    arrivals = np.cumsum(np.random.default_rng(0).exponential(0.5, count))
    lengths = np.full(count, 3 * 64), np.full(count, 20)
    traffic = Traffic(arrivals, *lengths, hashes, block_tokens=64)
    shared = serve(traffic, pages=pages, block_tokens=64)
    alone = serve(traffic, pages=pages)
    assert shared.shared_tokens >= 128 * (count - 10)
    assert alone.shared_tokens == 0
    assert np.nanmean(shared.first_token_s - arrivals) < 0.6 * np.nanmean(alone.first_token_s - arrivals)


def test_the_router_by_prefix_finds_what_is_cached() -> None:
    r = np.random.default_rng(0)
    count = 400
    hashes = [(int(which),) for which in r.integers(0, 8, count)]
    traffic = Traffic(
        np.cumsum(r.exponential(0.05, count)), np.full(count, 80), np.full(count, 20), hashes, block_tokens=64
    )
    options = ReplicaOptions(TIMES, 2, 1024, block_tokens=64)
    shared = {
        router: simulate(traffic, FleetOptions(options, 4, router)).shared_tokens / traffic.input_tokens.sum()
        for router in ROUTERS
    }
    assert shared["prefix"] > 1.3 * shared["round-robin"]


@pytest.mark.parametrize("pages", [None, 64])
def test_host_memory_gives_back_prefixes_that_were_evicted(pages: int | None) -> None:
    """Forty prefixes of 128 tokens take turns on caches that hold a few; two replicas get those that they know."""
    hashes = [(number % 40,) for number in range(400)]
    traffic = Traffic(np.arange(400) * 0.2, np.full(400, 160), np.full(400, 10), hashes, block_tokens=128)
    options = ReplicaOptions(TIMES, 4, 1024, pages=pages, block_tokens=128)
    fleets = [FleetOptions(replace(options, host_tokens=tokens), 2, "prefix") for tokens in (0, 1000, 10**5)]
    without, small, large = (simulate(traffic, fleet) for fleet in fleets)
    assert without.restored_tokens == 0
    assert small.computed_tokens > large.computed_tokens
    assert large.restored_tokens > 0.8 * 128 * 360


fleets = st.builds(
    FleetOptions,
    st.builds(
        ReplicaOptions,
        st.just(MeasuredTimes(0.01, 1e-4, 1e-6, 4e-3, 1e-4, copy_token_s=1e-5)),
        st.sampled_from([1, 3, 8, 16]),
        st.just(128),
        st.sampled_from([32, 64]),
        st.sampled_from([None, 40]),
        st.sampled_from([50, 70, None]),
        st.just(4),
        st.sampled_from([16, 0]),
        st.sampled_from([0, 200, 20_000]),
        st.just(100),
        st.sampled_from([8, 16]),
        st.sampled_from([4, 16]),
        st.sampled_from([ScheduleOptions(name, quantum_s=0.1) for name in ("fcfs", "priority", "mlfq")]),
        is_packed=st.booleans(),
        copies_in_background=st.booleans(),
    ),
    st.integers(1, 3),
    st.sampled_from(ROUTERS),
    st.sampled_from([1, 2, 0]),
    st.just(1e-6),
)


@settings(max_examples=40, deadline=None)
@given(fleets, st.integers(0, 1000), st.sampled_from([20.0, 200.0]))
def test_any_fleet_answers_every_request(fleet: FleetOptions, seed: int, rate: float) -> None:
    """Prompts of up to 80 tokens that share blocks of 16, where slots, pages and host memory are scarce."""
    traffic = poisson(rate, 40, seed, inputs=40, outputs=20)
    r = np.random.default_rng(seed)
    hashes = [tuple(np.cumsum(r.integers(1, 3, count // 16)).tolist()) for count in traffic.input_tokens]
    levels = [SchedulingParams(int(level)) for level in r.integers(0, 3, len(traffic))]
    shared = replace(traffic, hash_ids=hashes if fleet.replica.block_tokens else (), scheduling=levels, block_tokens=16)
    record = simulate(shared, fleet)
    assert record.done == len(traffic)
    assert record.dropped == 0
    assert np.isfinite(record.finished_s).all()


def test_steps_that_copy_windows_read_a_power_of_two_of_the_longest_sequence() -> None:
    """Two sequences, of 100 and 120 tokens at first: until one has more than 128 tokens, steps read 128 of each."""
    times = MeasuredTimes(1.0, decode_cached_token_s=2**-10)
    traffic = Traffic(np.zeros(2), np.array([100, 120]), np.array([41, 41]))
    options = ReplicaOptions(times, 2, 300, 512, windows=ReadWindows(300))
    ended = simulate(traffic, FleetOptions(options)).finished_s
    # The first step decodes with 101 and 121 tokens, the ninth with 109 and 129.
    expected = 8 * (1 + 2 * 127 / 1024) + 32 * (1 + 2 * 255 / 1024)
    np.testing.assert_allclose(ended, expected)


@pytest.mark.parametrize(("call_tokens", "calls"), [(100, [(2, 96), (1, 1008)]), (10_000, [(3, 1008)])])
def test_sequences_of_pages_share_calls_by_their_lengths(call_tokens: int, calls: list[tuple[int, int]]) -> None:
    """If what they read less is more than the weights of a further call. Windows are whole pages of 48 tokens."""
    windows = ReadWindows(1000, 48, call_tokens)
    lengths = np.array([60, 50, 900])
    assert windows.calls(lengths) == calls
    assert windows.steps_alike(lengths) == 5  # until the first has 65


def test_requests_wait_while_others_come_also_if_all_come_at_once() -> None:
    """One of 10 runs during the whole of the interval in which requests come, however short it is."""
    traffic = Traffic(np.zeros(10), np.full(10, 100), np.full(10, 50))
    options = FleetOptions(ReplicaOptions(TIMES, 1, 1024))
    summary = summarize(traffic, simulate(traffic, options), options, {})
    assert (summary.waiting, summary.running) == (pytest.approx(9), pytest.approx(1))
