"""Step times of the roofline: packed calls against times that are added up by hand, and against calls of one kind."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.planning.planned import published_counts, question
from trtkit.planning.gpus import find_gpus
from trtkit.planning.llm import mixed_steps
from trtkit.simulation.machine import RooflineTimes
from trtkit.simulation.times import MeasuredTimes, decode_s

(H100,) = find_gpus(["h100"])
MODELS = ("llama-3.1-8b", "mixtral-8x7b")


@pytest.fixture(scope="module", autouse=True)
def made_once() -> None:
    """Count before any property is timed."""
    for name in MODELS:
        published_counts(name)


def times(name: str) -> RooflineTimes:
    """Return times at half of the roofline, with 1 ms more for a call and links of 1 us for each token."""
    return RooflineTimes(published_counts(name), H100, 0.5, 1e-3, links_s=lambda tokens, rows: 1e-6 * (tokens + rows))


def test_a_packed_call_reads_weights_once_and_computes_meanwhile() -> None:
    """Llama 3.1 8B: 40 rows that decode after 24,000 tokens, and the last 600 of a prompt of 1,000, by hand."""
    embedding, kv_token = 128_256 * 4096, 131_072
    weights = 8_030_261_248 - embedding
    memory_s = (2 * weights + kv_token * (24_000 + 40 + 1_000)) / 3.35e12
    pairs = 24_000 + 40 + 600 * 1_000
    products = 2 * (weights - embedding) * 640 + 2 * embedding * 41 + 4 * 32 * 128 * 32 * pairs
    least_s = max(memory_s, products / 989.4e12)
    expected = (least_s + 1e-6 * (640 + 41)) / 0.5 + 1e-3
    assert times("llama-3.1-8b").mixed_s(40, 24_000, [(600, 1_000)]) == pytest.approx(expected, rel=5e-3)


def test_idle_tokens_of_a_packed_call_compute_and_read_no_cache() -> None:
    """All layers but attention compute them; of 24 more tokens, the last has logits."""
    embedding = 128_256 * 4096
    dense = 8_030_261_248 - 2 * embedding
    call = 40, 24_000, [(600, 1_000)]
    found = times("llama-3.1-8b")
    more_s = found.mixed_s(*call, 24) - found.mixed_s(*call)
    assert more_s == pytest.approx((2 * (dense * 24 + embedding) / 989.4e12 + 24e-6) / 0.5, rel=1e-2)
    measured = MeasuredTimes(0.01, 1e-4, 1e-7, 2e-3, 1e-4)
    assert measured.mixed_s(*call, 24) - measured.mixed_s(*call) == pytest.approx(24e-4)


def test_the_simulator_and_the_plan_time_a_mixed_step_alike() -> None:
    for name in MODELS:
        asked = question(name, concurrency=8)
        plain = RooflineTimes(asked.counts, H100, slot_tokens=asked.work.slot_length)
        for step in mixed_steps(asked, H100):
            piece = step.prompt_tokens, asked.work.input_len
            found = plain.mixed_s(8, 8 * (asked.work.mean_length - 1), [piece])
            assert found == pytest.approx(step.packed.seconds, rel=1e-9)
        used = RooflineTimes(asked.counts, H100)
        assert used.mixed_s(8, 0, []) < plain.mixed_s(8, 0, []) == pytest.approx(used.mixed_s(8, 8 * 639, []), rel=1e-5)


@given(st.sampled_from(MODELS), st.integers(1, 200), st.integers(0, 100_000), st.integers(1, 600), st.integers(0, 4000))
def test_a_packed_call_of_one_kind_takes_what_a_call_of_that_kind_does(
    name: str, rows: int, cached: int, new: int, before: int
) -> None:
    found = times(name)
    decoding = decode_s(found.decode_lines(rows, cached), rows, cached, 1)
    assert found.mixed_s(rows, cached, []) == pytest.approx(decoding, rel=1e-5)  # lines round their counts
    assert found.mixed_s(0, 0, [(new, before + new)]) == pytest.approx(found.prefill_s(1, new, before + new))


def test_a_packed_call_passes_the_stages_of_a_pipeline_in_parts() -> None:
    """As a call for prompts of as many tokens does; a step that only decodes passes them whole."""
    counts = published_counts("llama-3.1-8b")
    one, four = (RooflineTimes(counts, H100, stages=stages) for stages in (1, 4))
    assert four.mixed_s(0, 0, [(2048, 2048)]) == pytest.approx(four.prefill_s(1, 2048, 2048), rel=1e-6)
    assert four.mixed_s(8, 800, [(2048, 2048)]) < 0.8 * one.mixed_s(8, 800, [(2048, 2048)])
    assert four.mixed_s(80, 8000, []) == one.mixed_s(80, 8000, [])
