from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch
from transformers import DeepseekV2Config, DeepseekV3Config
from transformers.models.deepseek_v2.modeling_deepseek_v2 import DeepseekV2TopkRouter
from transformers.models.deepseek_v3.modeling_deepseek_v3 import DeepseekV3TopkRouter
from transformers.models.phimoe.modeling_phimoe import sparsemixer

from tests.unit.network.ops.evaluate import assert_close, evaluate, random
from trtkit.models.feed_forward import RoutingSpec
from trtkit.network.ops.moe import choose_experts, combine_experts, top_k, weight_of_each

if TYPE_CHECKING:
    from trtkit.network.graph import Tensor


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
    assert_close(evaluate(lambda t: routed(t, RoutingSpec(k, norm_topk_prob=is_normalized)), logits), want)


@pytest.mark.parametrize("is_normalized", [False, True])
@pytest.mark.parametrize(("groups", "best", "k"), [(1, 1, 5), (4, 2, 3), (3, 1, 4), (2, 2, 1)])
def test_sigmoid_scores_in_groups_choose_as_transformers_does(
    groups: int, best: int, k: int, is_normalized: bool
) -> None:
    config = DeepseekV3Config(
        hidden_size=12,
        num_attention_heads=2,
        n_routed_experts=12,
        num_experts_per_tok=k,
        n_group=groups,
        topk_group=best,
    )
    config.norm_topk_prob, config.routed_scaling_factor = is_normalized, 2.5
    router, logits, bias = DeepseekV3TopkRouter(config), 3 * random(2, 9, 12), random(12)
    router.e_score_correction_bias.copy_(bias)
    routing = RoutingSpec(k, "sigmoid", is_normalized, 1, groups, best, "two_best", sum_epsilon=1e-20, scale=2.5)
    assert_close(evaluate(lambda t: routed(t, routing, bias), logits), transformed(router, logits))


@pytest.mark.parametrize("method", ["greedy", "group_limited_greedy"])
def test_softmax_scores_in_groups_choose_as_transformers_does(method: str) -> None:
    groups, best = (4, 2) if method == "group_limited_greedy" else (1, 1)
    config = DeepseekV2Config(hidden_size=12, num_attention_heads=2, n_routed_experts=12, num_experts_per_tok=4)
    config.topk_method, config.n_group, config.topk_group, config.routed_scaling_factor = method, 4, 2, 1.5
    router, logits = DeepseekV2TopkRouter(config), 3 * random(2, 9, 12)
    routing = RoutingSpec(4, norm_topk_prob=False, groups=groups, top_groups=best, scale=1.5)
    assert_close(evaluate(lambda t: routed(t, routing), logits), transformed(router, logits))


@pytest.mark.parametrize("jitter", [0.0, 0.01, 0.4])
def test_a_sparse_mixer_chooses_as_transformers_does(jitter: float) -> None:
    logits = random(2, 40, 5)
    logits[0, 0] = torch.tensor([0.5, 1.0, -1.0, 1.001, 0.0])  # two that are close
    weights, chosen = sparsemixer(logits, jitter, training=False)
    want = torch.zeros_like(logits).scatter(-1, chosen, weights)
    routing = RoutingSpec(2, "sparse_mixer", jitter=jitter)
    assert_close(evaluate(lambda t: routed(t, routing), logits), want)
    assert bool((weights < 1).any()) == (jitter > 0)


def routed(logits: Tensor, routing: RoutingSpec, bias: torch.Tensor | None = None) -> Tensor:
    """Return each token's weight for each expert [B, S, E]."""
    added = None if bias is None else logits.graph.constant(bias.reshape(1, 1, -1).numpy())
    return weight_of_each(choose_experts(logits, routing, added), logits.shape[-1])


def transformed(router: torch.nn.Module, logits: torch.Tensor) -> torch.Tensor:
    """Return what a router of transformers makes of logits [B, S, E]."""
    with torch.inference_mode():
        router.weight.copy_(torch.eye(logits.shape[-1]))  # type: ignore[operator]
        _, weights, chosen = router(logits)
    spread = torch.zeros(chosen.shape[0], logits.shape[-1]).scatter(-1, chosen, weights)
    return spread.reshape(logits.shape)


def test_experts_are_summed_by_weight() -> None:
    outputs, weights = random(2, 4, 3, 5), random(2, 3, 4)
    want = torch.einsum("besd,bse->bsd", outputs.double(), weights.double())
    assert_close(evaluate(combine_experts, outputs, weights), want)
