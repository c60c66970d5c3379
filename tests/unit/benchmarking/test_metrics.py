"""Metrics and goodput against NumPy on random records."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trtkit.benchmarking.metrics import RequestRecord, load_metrics, parse_objectives
from trtkit.errors import BenchError

moment = st.floats(0, 10)


@st.composite
def records(draw: st.DrawFn) -> RequestRecord:
    due = draw(moment)
    sent = due + draw(st.floats(0, 1))
    gaps = draw(st.lists(st.floats(0.001, 1), max_size=6))
    times = tuple((sent + np.cumsum(gaps)).tolist())
    ended = (times[-1] if times else sent) + draw(st.floats(0.001, 1))
    return RequestRecord(
        due, sent, ended, times, draw(st.integers(0, 9)), draw(st.sampled_from(["", "", "", "failed"]))
    )


@given(st.lists(records(), min_size=1, max_size=30), st.floats(1, 5000), st.floats(1, 5000), st.floats(1, 1000))
def test_goodput_is_numpys(found: list[RequestRecord], latency: float, first: float, per_token: float) -> None:
    objectives = {"request_latency": latency, "time_to_first_token": first, "inter_token_latency": per_token}
    ends = np.array([(each.due_s, each.ended_s) for each in found])
    good = np.array([not each.error for each in found])
    good &= (ends[:, 1] - ends[:, 0]) * 1e3 <= latency
    good &= [not each.token_times_s or (each.token_times_s[0] - each.due_s) * 1e3 <= first for each in found]
    means = [np.mean(np.diff(each.token_times_s)) if len(each.token_times_s) > 1 else 0.0 for each in found]
    near = np.isclose(np.array(means) * 1e3, per_token, rtol=1e-9)
    good &= np.array(means) * 1e3 <= per_token
    metrics = load_metrics(found, objectives)
    duration = ends[:, 1].max() - ends[:, 0].min()
    assert abs(metrics["good_request_count"].avg - good.sum()) <= near.sum()  # only those at the limit by rounding
    assert metrics["goodput"].avg == pytest.approx(metrics["good_request_count"].avg / duration)


@given(st.lists(records(), min_size=1, max_size=30))
def test_samples_and_totals_are_numpys(found: list[RequestRecord]) -> None:
    done = [each for each in found if not each.error]
    metrics = load_metrics(found, {})
    assert metrics["request_count"].avg == len(done)
    assert "goodput" not in metrics
    gaps = np.concatenate([np.diff(each.token_times_s) for each in done] or [[]]) * 1e3
    if gaps.size:
        assert vars(metrics["inter_chunk_latency"])["p95"] == pytest.approx(np.percentile(gaps, 95), abs=1e-6)
        means = [np.diff(each.token_times_s).mean() * 1e3 for each in done if len(each.token_times_s) > 1]
        assert metrics["inter_token_latency"].avg == pytest.approx(np.mean(means))
        assert metrics["output_token_throughput_per_user"].avg == pytest.approx(np.mean(1e3 / np.array(means)))
    tokens = sum(len(each.token_times_s) for each in done)
    if tokens:
        duration = max(each.ended_s for each in found) - min(each.due_s for each in found)
        assert metrics["output_token_throughput"].avg == pytest.approx(tokens / duration)


@given(st.lists(records(), min_size=1, max_size=30), st.floats(1, 5000))
def test_goodput_grows_with_the_limit_and_stays_below_throughput(found: list[RequestRecord], limit: float) -> None:
    low, high = (load_metrics(found, {"request_latency": each})["goodput"].avg for each in (limit, 2 * limit))
    assert low <= high <= load_metrics(found, {})["request_throughput"].avg + 1e-9


def test_objectives_have_aiperfs_names_or_short_ones() -> None:
    found = parse_objectives(["ttft:200", "tpot:50.5", "request_latency:1000"])
    assert found == {"time_to_first_token": 200, "inter_token_latency": 50.5, "request_latency": 1000}


@pytest.mark.parametrize("text", ["ttft", "ttft:", "ttft:x", "speed:3", "ttft:-1", "ttft:nan", "ttft:inf", ""])
def test_what_is_no_objective_is_refused(text: str) -> None:
    with pytest.raises(BenchError) as caught:
        parse_objectives([text])
    names = "e2e, ttft, tpot, request_latency, time_to_first_token, inter_token_latency"
    assert str(caught.value) == (
        f"--goodput: `{text}` is not an objective\nfix: write NAME:MILLISECONDS with one of {names}"
    )
