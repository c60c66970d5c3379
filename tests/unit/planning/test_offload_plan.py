"""Plans of stages in turn: by hand, within their bounds, and what FlexGen published."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.planning.test_plan_properties import LLAMA, question
from trtkit.planning.gpus import find_gpus
from trtkit.planning.memory import RESERVE_BYTES
from trtkit.planning.offload import block_plan, plan_offload
from trtkit.planning.question import Host
from trtkit.planning.roofline import floor

(T4,) = find_gpus(["t4"])


def test_a_block_by_hand() -> None:
    """Caches on the host, all weights in its memory: the link is the slowest lane, so that the pass takes as long."""
    asked = replace(question(LLAMA, concurrency=1), host=Host(10**12))
    model, work = asked.model, asked.work
    plan = block_plan(asked, T4, "host", 2, 4)
    assert plan is not None
    assert (plan.stages, plan.disk_share) == (model.layers, 0)
    link = 15.76e9
    read, layers = 8 * work.mean_length * model.kv_bytes_per_token, model.layers
    computes = floor(asked.counts, work.decode(2), T4).seconds / layers
    one = model.weight_bytes / layers / 4 / link  # the share of the next stage's weights in each step
    fetch = read / 8 * 2 / layers / link
    store = 2 * model.kv_bytes_per_token / layers / link
    steps = 4 * layers
    by_hand = fetch + (steps - 1) * max(computes, one + fetch, store) + max(computes, one, store) + store
    assert plan.decode_s == pytest.approx(by_hand)
    assert plan.output_tokens_per_second == pytest.approx(
        8 * work.output_len / (plan.prefill_s + (work.output_len - 1) * plan.decode_s)
    )
    weights, buffers = 2 * model.weight_bytes / layers, 3 * 2 * work.length * model.kv_bytes_per_token / layers
    activations = asked.counts.activation_bytes((2, min(work.chunk, work.input_len), work.length))
    assert plan.device_bytes == pytest.approx(weights + buffers + activations + RESERVE_BYTES, abs=2)


@given(st.integers(5, 200), st.floats(0.1, 10), st.sampled_from(["device", "host", "disk"]))
@settings(max_examples=25)
def test_blocks_fit_and_a_faster_disk_is_never_worse(gigabytes: int, rate: float, place: str) -> None:
    asked = question(LLAMA, concurrency=1)
    host = Host(gigabytes * 10**9, rate * 1e9, rate * 1e9)
    plans = {plan.caches: plan for plan in plan_offload(replace(asked, host=host), T4)}
    faster = replace(host, read_bytes_per_s=2e9 * rate, write_bytes_per_s=2e9 * rate)
    others = {plan.caches: plan for plan in plan_offload(replace(asked, host=faster), T4)}
    assert plans.keys() == others.keys()
    for name, plan in plans.items():
        assert plan.device_bytes <= T4.memory_bytes
        assert plan.host_bytes <= host.memory_bytes
        assert 0 <= plan.disk_share <= 1
        assert plan.output_tokens_per_second <= others[name].output_tokens_per_second * (1 + 1e-9)
    if place in plans:
        least = plans[place]
        same = block_plan(replace(asked, host=host), T4, least.caches, least.micro_batch, least.micro_batches)
        assert same == least


def test_nothing_without_a_host_a_link_or_a_disk_where_one_is_needed() -> None:
    asked = question(LLAMA, concurrency=1)
    assert plan_offload(asked, T4) == ()
    assert plan_offload(replace(asked, host=Host(10**12)), replace(T4, host_link="")) == ()
    assert {plan.caches for plan in plan_offload(replace(asked, host=Host(10**12)), T4)} == {"device", "host"}
    small = Host(5 * 10**9)
    assert plan_offload(replace(asked, host=small), T4) == ()
    with_disk = replace(small, read_bytes_per_s=1e9, write_bytes_per_s=1e9)
    assert all(plan.disk_share > 0 for plan in plan_offload(replace(asked, host=with_disk), T4))
