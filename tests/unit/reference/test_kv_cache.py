from __future__ import annotations

from typing import Any

import pytest
import torch

from trtkit.errors import ExecutionError


def _cache_update(
    net: Any, cache: torch.Tensor, update: torch.Tensor, at: list[int], lengths: torch.Tensor | None = None
) -> Any:
    layer = net.network.add_kv_cache_update(
        net.given(cache), net.given(update), net.given(torch.tensor(at, dtype=torch.int32)), net.trt.KVCacheMode.LINEAR
    )
    layer.name = "cache"
    if lengths is not None:
        layer.update_form = net.trt.AttentionIOForm.PACKED_NHD
        layer.update_lengths = net.given(lengths)
    return layer.get_output(0)


@pytest.mark.parametrize("in_place", [False, True])
def test_new_keys_go_to_each_sequences_own_place(net: Any, random: Any, in_place: bool) -> None:
    cache, update = random(2, 3, 8, 4), random(2, 3, 2, 4)
    want = cache.clone()
    want[0, :, 5:7], want[1, :, 0:2] = update[0], update[1]
    before = cache.clone()
    got = net.run(_cache_update(net, cache, update, [5, 0]), in_place_caches=in_place)
    assert torch.equal(got, want)
    assert torch.equal(cache, want if in_place else before)
    assert (got.data_ptr() == cache.data_ptr()) is in_place


def test_keys_that_do_not_fit_the_cache_are_an_error(net: Any, random: Any) -> None:
    output = _cache_update(net, random(1, 1, 4, 2), random(1, 1, 2, 2), [3])
    with pytest.raises(ExecutionError, match=r"cache: .*2 tokens at 3 do not fit a cache of 4"):
        net.run(output)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize(("count", "at"), [(1, [7, 0, 3]), (1, [2, 2, 2]), (3, [5, 0, 1]), (8, [0, 0, 0])])
def test_one_token_and_several_are_written_alike(
    net: Any, random: Any, count: int, at: list[int], dtype: torch.dtype
) -> None:
    cache, update = random(3, 2, 8, 4, dtype=dtype), random(3, 2, count, 4, dtype=dtype)
    want = cache.clone()
    for index, first in enumerate(at):
        want[index, :, first : first + count] = update[index]
    assert torch.equal(net.run(_cache_update(net, cache, update, at)), want)


@pytest.mark.parametrize("rows", [1, 2])
@pytest.mark.parametrize("count", [1, 3])
def test_slots_of_a_larger_cache_are_written_where_they_are(net: Any, random: Any, rows: int, count: int) -> None:
    slots, update = random(4, 3, 8, 4), random(rows, 3, count, 4)
    want = slots.clone()
    want[1 : 1 + rows, :, 5 : 5 + count] = update
    at = slots.data_ptr()
    got = net.run(_cache_update(net, slots[1 : 1 + rows], update, [5] * rows), in_place_caches=True)
    assert torch.equal(slots, want)
    assert got.data_ptr() == slots[1].data_ptr()
    assert slots.data_ptr() == at


def test_packed_tokens_go_to_their_sequences_place(net: Any, random: Any) -> None:
    cache, update = random(2, 3, 8, 4), random(5, 3, 4)
    output = _cache_update(net, cache, update, [6, 1], torch.tensor([0, 2, 5], dtype=torch.int32))
    want = cache.clone()
    want[0, :, 6:8], want[1, :, 1:4] = update[:2].transpose(0, 1), update[2:].transpose(0, 1)
    assert torch.equal(net.run(output), want)


@pytest.mark.parametrize("at", [[0, 8, 0], [-1, 0, 0]])
def test_a_token_behind_or_before_the_cache_is_an_error(net: Any, random: Any, at: list[int]) -> None:
    output = _cache_update(net, random(3, 1, 8, 2), random(3, 1, 1, 2), at)
    with pytest.raises(ExecutionError, match=rf"1 tokens at {next(x for x in at if x)} do not fit a cache of 8"):
        net.run(output)
