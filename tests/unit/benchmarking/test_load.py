"""Load: closed and open loops, and latencies that count the time a request had to wait for others."""

from __future__ import annotations

import threading
import time

import pytest

from tests.unit.benchmarking.clocks import VirtualClock
from trtkit.benchmarking.arrivals import constant_arrivals
from trtkit.benchmarking.load import RequestOutcome, drive, peak_concurrency
from trtkit.benchmarking.metrics import load_metrics
from trtkit.benchmarking.statistics import SampleStatistics
from trtkit.errors import BenchError


def test_a_stalled_server_shows_in_every_request_that_was_due_meanwhile() -> None:
    """A server of 1 ms that stalls for a second at request 10, asked every 10 ms by one sender."""
    clock = VirtualClock()

    def send(index: int) -> RequestOutcome:
        clock.sleep(1.0 if index == 10 else 0.001)
        return RequestOutcome()

    records = drive(send, constant_arrivals(100, 200), workers=1, clock=clock)
    waited = [record for record in records if record.latency_s > 0.005]
    # 1 s of arrivals each 10 ms wait, and the queue of 100 drains by 9 ms with each request of 1 ms: 100 / 0.9 in all.
    assert len(waited) == pytest.approx(110, abs=3)
    assert [record.service_s > 0.005 for record in records].count(True) == 1
    latency = load_metrics(records, {})["request_latency"]
    assert isinstance(latency, SampleStatistics)
    assert latency.p50 > 100  # ms; the sender's own view says 1 ms
    assert latency.max == pytest.approx(1000)


def test_due_times_are_kept_while_the_server_is_fast() -> None:
    clock = VirtualClock()
    records = drive(lambda _: (clock.sleep(0.002), RequestOutcome())[1], [0.0, 0.5, 0.75], workers=1, clock=clock)
    assert [record.sent_s for record in records] == pytest.approx([0, 0.5, 0.75])
    assert [record.latency_s for record in records] == pytest.approx([0.002] * 3)


def test_a_closed_loop_sends_when_a_worker_is_free() -> None:
    barrier = threading.Barrier(4, timeout=60)  # breaks unless four are under way at once

    def send(index: int) -> RequestOutcome:
        barrier.wait()
        return RequestOutcome((time.perf_counter(),))

    records = drive(send, 12, workers=4)
    assert len(records) == 12
    assert peak_concurrency(records) == 4
    assert all(record.due_s == record.sent_s for record in records)
    assert all(record.sent_s <= record.token_times_s[0] <= record.ended_s for record in records)


def test_an_open_loop_does_not_wait_for_answers() -> None:
    """All requests are due at once, and each waits until all have been sent."""
    barrier = threading.Barrier(8, timeout=60)
    records = drive(lambda _: (barrier.wait(), RequestOutcome())[1], [0.0] * 8, workers=8)
    assert peak_concurrency(records) == 8
    assert {record.due_s for record in records} == {0.0}


def test_a_request_that_fails_is_counted_and_the_load_goes_on() -> None:
    def send(index: int) -> RequestOutcome:
        if index == 1:
            raise BenchError("the server refuses")
        return RequestOutcome()

    records = drive(send, 3, workers=1)
    assert [record.error for record in records] == ["", "the server refuses", ""]
    metrics = load_metrics(records, {})
    assert (metrics["request_count"].avg, metrics["error_request_count"].avg) == (2, 1)
    assert vars(metrics["request_latency"])["count"] == 2


@pytest.mark.parametrize("workers", [1, 3])
def test_a_fault_of_the_program_ends_the_load(workers: int) -> None:
    def send(index: int) -> RequestOutcome:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        drive(send, 9, workers)
