from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch.testing import assert_close


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


@pytest.mark.parametrize("heads", [(4, 2), (3, 3), (6, 1)])
@pytest.mark.parametrize("used", [[1, 1], [3, 7], [9, 2], [0, 0]])
def test_columns_that_no_row_may_attend_to_change_nothing(
    net: Any, random: Any, heads: tuple[int, int], used: list[int]
) -> None:
    q, k, v = random(2, heads[0], 5, 8), random(2, heads[1], 9, 8), random(2, heads[1], 9, 8)
    mask = (torch.arange(9) < torch.tensor(used).reshape(2, 1, 1, 1)).expand(2, 1, 5, 9).contiguous()
    mask[:, :, 2] = False  # a row with nothing to attend to
    attention = _attention(net, q, k, v)
    attention.mask = net.given(mask)
    got = net.run(attention.get_output(0))
    assert_close(got.double(), naive_attention(q, k, v, mask), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("rows", [128, 129, 300])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_long_prompts_attend_in_blocks_of_rows(net: Any, random: Any, rows: int, dtype: torch.dtype) -> None:
    q, k, v = random(2, 4, rows, 8, dtype=dtype), random(2, 2, 400, 8, dtype=dtype), random(2, 2, 400, 8, dtype=dtype)
    start = torch.tensor([3, 90]).reshape(2, 1, 1, 1)
    mask = torch.arange(400) <= start + torch.arange(rows).reshape(1, 1, rows, 1)
    mask[1, :, :50] = False
    attention = _attention(net, q, k, v)
    attention.mask = net.given(mask)
    got = net.run(attention.get_output(0))
    rounding = {torch.float32: 1e-5, torch.float16: 2**-9}[dtype]
    assert got.dtype == dtype
    assert_close(got.double(), naive_attention(q, k, v, mask), rtol=rounding, atol=rounding)


def test_a_float_mask_that_allows_nothing_attends_evenly(net: Any, random: Any) -> None:
    q, k, v = random(1, 2, 3, 8), random(1, 1, 7, 8), random(1, 1, 7, 8)
    mask = torch.full((1, 1, 3, 7), -3.0e38)
    attention = _attention(net, q, k, v)
    attention.mask = net.given(mask)
    got = net.run(attention.get_output(0))
    assert_close(got, v.mean(2, keepdim=True).expand(1, 2, 3, 8))


def test_layers_share_one_mask_and_each_run_reads_it_anew(net: Any, random: Any) -> None:
    q, k, v = random(2, 4, 5, 8), random(2, 2, 9, 8), random(2, 2, 9, 8)
    others = random(2, 4, 5, 8)
    mask = torch.ones(2, 1, 5, 9, dtype=torch.bool).tril(1)
    given = net.given(mask), net.given(k), net.given(v)
    outputs = []
    for queries in (q, others):
        layer = net.network.add_attention_v2(
            net.given(queries), *given[1:], net.trt.AttentionNormalizationOp.SOFTMAX, net.trt.CausalMaskKind.NONE
        )
        layer.mask = given[0]
        outputs.append(layer.get_output(0))
    executor = net.executor(*outputs)
    for offset in (1, 3, -2):
        mask.copy_(torch.ones(2, 1, 5, 9, dtype=torch.bool).tril(offset))  # the same memory in every run
        for got, queries in zip(executor.run(net.feed).values(), (q, others), strict=True):
            assert_close(got.double(), naive_attention(queries, k, v, mask), rtol=1e-5, atol=1e-6)


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


@pytest.mark.parametrize(("rows", "columns"), [(1, 40), (3, 700)])
def test_few_fp16_rows_have_scores_beyond_its_range(net: Any, random: Any, rows: int, columns: int) -> None:
    q = torch.full((2, 6, rows, 64), 60.0, dtype=torch.float16)
    k, v = torch.full((2, 3, columns, 64), 60.0, dtype=torch.float16), random(2, 3, columns, 64, dtype=torch.float16)
    k[:, :, columns // 2 :] = -60.0
    lengths = torch.tensor([columns, columns // 2 + 3], dtype=torch.int32)
    attention = _attention(net, q, k, v)
    attention.key_value_lengths = net.given(lengths)
    got = net.run(attention.get_output(0))
    allowed = (torch.arange(columns) < lengths[:, None]).reshape(2, 1, 1, columns)
    assert_close(got.double(), naive_attention(q, k, v, allowed), rtol=2**-9, atol=2**-11)
