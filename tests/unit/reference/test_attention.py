from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch.testing import assert_close

from trtkit.errors import ExecutionError


def naive_attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, allowed: torch.Tensor) -> torch.Tensor:
    """softmax(q k^T) v in fp64, heads of k and v repeated; rows with nothing allowed give zeros."""
    group = q.shape[1] // k.shape[1]
    q, k, v = q.double(), k.double().repeat_interleave(group, 1), v.double().repeat_interleave(group, 1)
    scores = (q @ k.mT).masked_fill(~allowed, -torch.inf)
    return torch.softmax(scores, -1).nan_to_num(0.0) @ v


def _attention(net: Any, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: str = "NONE") -> Any:
    return net.network.add_attention_v2(
        net.given(q), net.given(k), net.given(v), net.trt.AttentionNormalizationOp.SOFTMAX,
        getattr(net.trt.CausalMaskKind, causal),
    )  # fmt: skip


@pytest.mark.parametrize(("causal", "offset"), [("UPPER_LEFT", 0), ("LOWER_RIGHT", 4)])
@pytest.mark.parametrize("heads", [1, 3])
def test_causal_masks_are_anchored_where_they_say(net: Any, random: Any, causal: str, offset: int, heads: int) -> None:
    q, k, v = random(2, 3, 5, 8), random(2, heads, 9, 8), random(2, heads, 9, 8)
    allowed = torch.arange(9) <= torch.arange(5).reshape(5, 1) + offset
    got = net.run(_attention(net, q, k, v, causal).get_output(0))
    assert_close(got.double(), naive_attention(q, k, v, allowed), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("mask_shape", [(2, 1, 5, 9), (2, 4, 5, 9), (1, 1, 1, 9)])
def test_bool_masks_and_lengths_hide_keys_of_grouped_heads(net: Any, random: Any, mask_shape: tuple[int, ...]) -> None:
    q, k, v = random(2, 4, 5, 8), random(2, 2, 9, 8), random(2, 2, 9, 8)
    mask, lengths = random(*mask_shape) > -0.5, torch.tensor([7, 3], dtype=torch.int32)
    attention = _attention(net, q, k, v)
    attention.mask, attention.key_value_lengths = net.given(mask), net.given(lengths)
    allowed = mask & (torch.arange(9) < lengths.reshape(2, 1, 1, 1))
    got = net.run(attention.get_output(0))
    assert_close(got.double(), naive_attention(q, k, v, allowed), rtol=1e-5, atol=1e-6)


def test_a_float_mask_is_added_and_fp16_is_summed_in_fp32(net: Any, random: Any) -> None:
    q, k, v = (random(1, 2, 4, 16, dtype=torch.float16) for _ in range(3))
    mask = random(1, 1, 4, 4, dtype=torch.float16)
    attention = _attention(net, q, k, v)
    attention.mask = net.given(mask)
    got = net.run(attention.get_output(0))
    want = torch.softmax(q.double() @ k.double().mT + mask.double(), -1) @ v.double()
    assert got.dtype == torch.float16
    assert_close(got.double(), want, rtol=2**-9, atol=2**-11)


def test_packed_queries_and_keys_attend_within_their_sequence(net: Any, random: Any) -> None:
    q, k, v = random(5, 2, 8), random(7, 2, 8), random(7, 2, 8)
    attention = _attention(net, q, k, v)
    attention.query_form = attention.key_value_form = net.trt.AttentionIOForm.PACKED_NHD
    attention.query_lengths = net.given(torch.tensor([0, 2, 5], dtype=torch.int32))
    attention.key_value_lengths = net.given(torch.tensor([0, 4, 7], dtype=torch.int32))
    got = net.run(attention.get_output(0))
    for (q0, q1), (k0, k1) in (((0, 2), (0, 4)), ((2, 5), (4, 7))):
        parts = [x[a:b].transpose(0, 1)[None] for x, a, b in ((q, q0, q1), (k, k0, k1), (v, k0, k1))]
        want = naive_attention(*parts, torch.tensor(True))[0].transpose(0, 1)
        assert_close(got[q0:q1].double(), want, rtol=1e-5, atol=1e-6)


def test_quantized_normalization_rounds_the_weights_to_int8(net: Any, random: Any) -> None:
    q, k, v = (random(1, 1, 3, 8) for _ in range(3))
    attention = _attention(net, q, k, v)
    attention.normalization_quantize_scale = net.constant(np.float32(1 / 127))
    attention.normalization_quantize_to_type = net.trt.int8
    weights = torch.round(torch.softmax(q @ k.mT, -1) * 127) / 127
    assert_close(net.run(attention.get_output(0)), weights @ v)


def _cache_update(net: Any, cache: torch.Tensor, update: torch.Tensor, at: list[int]) -> Any:
    layer = net.network.add_kv_cache_update(
        net.given(cache), net.given(update), net.given(torch.tensor(at, dtype=torch.int32)), net.trt.KVCacheMode.LINEAR
    )
    layer.name = "cache"
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


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("size", [0, 4])
def test_rotary_embedding_turns_pairs_as_complex_numbers(net: Any, random: Any, interleaved: bool, size: int) -> None:
    x, angles = random(2, 3, 5, 8), random(16, (size or 8) // 2)
    positions = torch.tensor([[0, 1, 2, 3, 4], [7, 15, 3, 0, 9]], dtype=torch.int64)
    layer = net.network.add_rotary_embedding(
        net.given(x), net.given(angles.cos()), net.given(angles.sin()), interleaved, size
    )
    layer.set_input(3, net.given(positions))
    width = size or 8
    turned = x[..., :width]
    pairs = turned.reshape(2, 3, 5, -1, 2) if interleaved else torch.stack(turned.chunk(2, -1), -1)
    rotated = torch.view_as_complex(pairs.contiguous()) * torch.exp(1j * angles[positions])[:, None]
    flat = torch.view_as_real(rotated)
    first = flat.flatten(-2) if interleaved else torch.cat(flat.unbind(-1), -1)
    assert_close(net.run(layer.get_output(0)), torch.cat((first, x[..., width:]), -1))


def test_mixture_of_experts_adds_the_chosen_experts_by_score(net: Any, random: Any) -> None:
    hidden, scores = random(2, 3, 8), random(2, 3, 2).abs()
    chosen = torch.tensor([[[0, 2], [1, 3], [3, 0]], [[2, 1], [0, 1], [2, 3]]], dtype=torch.int32)
    gate, up, down = random(4, 8, 16), random(4, 8, 16), random(4, 16, 8)
    layer = net.network.add_moe(net.given(hidden), net.given(chosen), net.given(scores))
    layer.set_gated_weights(net.given(gate), net.given(up), net.given(down), net.trt.MoEActType.SILU)
    want = torch.zeros_like(hidden)
    for place in np.ndindex(2, 3, 2):
        token, expert = hidden[place[:2]], int(chosen[place])
        inner = torch.nn.functional.silu(token @ gate[expert]) * (token @ up[expert])
        want[place[:2]] += scores[place] * (inner @ down[expert])
    assert_close(net.run(layer.get_output(0)), want, rtol=1e-4, atol=1e-4)
