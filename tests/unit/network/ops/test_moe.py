from __future__ import annotations

import pytest
import torch

from tests.unit.network.ops.evaluate import assert_close, evaluate, random
from trtkit.network.ops.moe import combine_experts, routing_weights, top_k


def test_top_k_gives_values_and_places() -> None:
    x = random(2, 3, 7)
    values, places = evaluate(lambda t: list(top_k(t, 3)), x)
    want = x.topk(3)
    assert torch.equal(values, want.values)
    assert torch.equal(places.long(), want.indices)


@pytest.mark.parametrize("is_normalized", [False, True])
@pytest.mark.parametrize("k", [1, 3, 7])
def test_routing_keeps_the_k_best_softmax_scores(is_normalized: bool, k: int) -> None:
    logits = random(2, 3, 7)
    scores = logits.softmax(-1)
    best = scores.topk(k)
    kept = torch.zeros_like(scores).scatter(-1, best.indices, best.values)
    want = kept / kept.sum(-1, keepdim=True) if is_normalized else kept
    assert_close(evaluate(lambda t: routing_weights(t, k, 0.0 if is_normalized else None), logits), want)


def test_experts_are_summed_by_weight() -> None:
    outputs, weights = random(2, 4, 3, 5), random(2, 3, 4)
    want = torch.einsum("besd,bse->bsd", outputs.double(), weights.double())
    assert_close(evaluate(combine_experts, outputs, weights), want)
