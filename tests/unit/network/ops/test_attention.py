from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch

from tests.unit.network.ops.evaluate import assert_close, evaluate, random
from trtkit.dtypes import FP16, FP32
from trtkit.network.ops.attention import attention, attention_from_primitives, scale_query
from trtkit.network.ops.kv_cache import update_cache
from trtkit.network.ops.mask import alibi_mask, alibi_slopes, causal_mask
from trtkit.network.ops.rotary import rotary_embedding

if TYPE_CHECKING:
    from trtkit.network.graph import Tensor

POSITIONS = torch.tensor([[4, 5, 6], [0, 1, 2]], dtype=torch.int32)
LENGTHS = torch.tensor([7, 2], dtype=torch.int32)  # the second slot's last token is padding


def scores_of(q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
    """Return q k^T in fp64, key heads repeated."""
    return q.double() @ k.double().repeat_interleave(q.shape[1] // k.shape[1], 1).mT


@pytest.mark.parametrize("window", [None, 3])
def test_causal_mask_sees_up_to_its_position_within_window_and_length(window: int | None) -> None:
    got = evaluate(lambda p, n: causal_mask(p, n, 9, window), POSITIONS, LENGTHS)
    column, row = torch.arange(9), POSITIONS[:, None, :, None]
    want = (column <= row) & (column < LENGTHS.reshape(2, 1, 1, 1)) & (column > row - (window or 99))
    assert torch.equal(got, want)


@pytest.mark.parametrize("from_primitives", [False, True])
@pytest.mark.parametrize("dtype", ["fp32", "fp16", "bf16"])
@pytest.mark.parametrize("heads", [1, 2, 6])
def test_attention_matches_softmax_of_scores(from_primitives: bool, dtype: str, heads: int) -> None:
    q, k, v = (random(2, count, size, 8, dtype=dtype) for count, size in ((6, 3), (heads, 9), (heads, 9)))
    op = attention_from_primitives if from_primitives else attention
    mask = evaluate(lambda p, n: causal_mask(p, n, 9), POSITIONS, LENGTHS)
    got = evaluate(lambda q, k, v, mask: op((q, k, v), mask), q, k, v, mask, dynamic=False)
    weights = scores_of(q, k).masked_fill(~mask, -torch.inf).softmax(-1)
    assert_close(got, weights @ v.double().repeat_interleave(6 // heads, 1), dtype)


def test_attention_told_lengths_reads_nothing_behind_them() -> None:
    q, k, v = random(2, 4, 3, 8), random(2, 2, 9, 8), random(2, 2, 9, 8)
    everything = torch.ones(2, 1, 3, 9, dtype=torch.bool)
    got = evaluate(lambda q, k, v, mask, n: attention((q, k, v), mask, n), q, k, v, everything, LENGTHS, dynamic=False)
    allowed = (torch.arange(9) < LENGTHS[:, None])[:, None, None]
    weights = scores_of(q, k).masked_fill(~allowed, -torch.inf).softmax(-1)
    assert_close(got, weights @ v.double().repeat_interleave(2, 1))


def test_soft_capping_and_sinks_enter_before_the_softmax() -> None:
    q, k, v, sinks = random(2, 4, 3, 8), random(2, 2, 9, 8), random(2, 2, 9, 8), random(4)
    mask = evaluate(lambda p, n: causal_mask(p, n, 9), POSITIONS, LENGTHS)

    def build(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
        return attention_from_primitives((q, k, v), mask, 1.5, q.graph.constant(sinks))

    capped = (torch.tanh(scores_of(q, k) / 1.5) * 1.5).masked_fill(~mask, -torch.inf)
    column = sinks.double().reshape(1, 4, 1, 1).expand(2, 4, 3, 1)
    weights = torch.cat([capped, column], -1).softmax(-1)[..., :-1]
    want = weights @ v.double().repeat_interleave(2, 1)
    assert_close(evaluate(build, q, k, v, mask, dynamic=False), want)


def test_rows_without_any_key_are_numbers() -> None:
    q, k, v = random(1, 2, 1, 8), random(1, 2, 4, 8), random(1, 2, 4, 8)
    nothing = torch.zeros(1, 1, 1, 4, dtype=torch.bool)
    got = evaluate(lambda q, k, v, m: attention_from_primitives((q, k, v), m, 5.0), q, k, v, nothing, dynamic=False)
    assert got.isfinite().all()


@pytest.mark.parametrize("heads", [4, 6])
def test_alibi_gives_the_softmax_of_slopes_times_key_positions(heads: int) -> None:
    scores = random(2, heads, 3, 9)
    allowed = evaluate(lambda p, n: causal_mask(p, n, 9), POSITIONS, LENGTHS)
    bias = evaluate(lambda m, p: alibi_mask(m, p, alibi_slopes(heads), FP32), allowed, POSITIONS)
    slopes = torch.tensor({4: [2**-2, 2**-4, 2**-6, 2**-8], 6: [2**-2, 2**-4, 2**-6, 2**-8, 2**-1, 2**-3]}[heads])
    by_key = (scores + slopes.reshape(-1, 1, 1) * torch.arange(9)).masked_fill(~allowed, -torch.inf)
    assert_close((scores + bias).softmax(-1), by_key.softmax(-1))


def test_alibi_in_fp16_stays_finite() -> None:
    allowed = torch.tensor([[[[True, False]]]])
    position = torch.zeros(1, 1, dtype=torch.int32)
    got = evaluate(lambda m, p: alibi_mask(m, p, alibi_slopes(2), FP16), allowed, position, dynamic=False)
    assert got.isfinite().all()


@pytest.mark.parametrize("scale", [0.125, 1.0, 0.1767766952966369])
def test_queries_are_scaled_with_one_rounding(scale: float) -> None:
    q = random(1, 2, 3, 8, dtype="bf16")
    assert torch.equal(evaluate(lambda t: scale_query(t, scale), q), (q.double() * scale).to(torch.bfloat16))


@pytest.mark.parametrize("is_interleaved", [False, True])
@pytest.mark.parametrize("dim", [8, 4])
def test_rotary_embedding_turns_pairs_as_complex_numbers(is_interleaved: bool, dim: int) -> None:
    x, angles = random(2, 3, 3, 8), random(9, dim // 2)

    def build(x: Tensor, at: Tensor) -> Tensor:
        tables = (x.graph.constant(angles.cos()), x.graph.constant(angles.sin()))
        return rotary_embedding(x, tables, at, dim, is_interleaved=is_interleaved)

    rotated = x[..., :dim].double()
    pairs = rotated.unflatten(-1, (-1, 2)) if is_interleaved else torch.stack(rotated.chunk(2, -1), -1)
    turned = torch.view_as_complex(pairs.contiguous()) * torch.exp(1j * angles[POSITIONS.long()].double())[:, None]
    flat = torch.view_as_real(turned)
    first = flat.flatten(-2) if is_interleaved else torch.cat(flat.unbind(-1), -1)
    assert_close(evaluate(build, x, POSITIONS, dynamic=False), torch.cat((first, x[..., dim:].double()), -1))


def test_each_slot_writes_its_cache_at_its_own_place() -> None:
    cache, new = random(2, 2, 9, 8), random(2, 2, 3, 8)
    at = torch.tensor([6, 0], dtype=torch.int32)
    want = cache.clone()
    want[0, :, 6:9], want[1, :, 0:3] = new[0], new[1]
    assert torch.equal(evaluate(update_cache, cache, new, at, dynamic=False), want)
