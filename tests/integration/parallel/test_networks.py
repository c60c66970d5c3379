"""Several ranks give what one gives: every decoder family; tensor, expert and pipeline parallel."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
import torch

from tests.selection import slow_unless
from tests.support.covering import CACHED, STEPPED, in_covering_set_of, spec_of
from tests.support.decoder_cases import CASES
from tests.support.decoders import builds, executor_of, model_of, relative_rms
from tests.support.parallel import Ranks
from trtkit.dtypes import FP16, FP32
from trtkit.models.feed_forward import MoeSpec
from trtkit.models.parallel import Grid

if TYPE_CHECKING:
    from tests.support.decoder_case import Case

IDS = torch.randint(3, 67, (3, 9), generator=torch.Generator().manual_seed(1))
# Sizes that 2, 4 and 8 ranks share: of 8 heads; of 2 key/value heads, which more ranks hold twice; of 67 tokens, which
# no number of ranks divides.
_HEADS = {6: 8, 4: 8}
_HEAD_COUNTS = ("num_attention_heads", "n_head", "n_heads", "attention_heads")
_SIZES = {"intermediate_size": 80, "ffn_dim": 80, "moe_intermediate_size": 40, "shared_expert_intermediate_size": 56}
_SIZES["moe_shared_expert_intermediate_size"] = 56
_HEADS_OF_STATES = {"linear_num_key_heads": 8, "linear_num_value_heads": 16, "mamba_n_groups": 8, "n_groups": 8}
_HEADS_OF_STATES["linear_num_heads"] = 8
_EXPERTS = {"num_local_experts": 8, "num_experts": 8, "n_routed_experts": 8, "n_group": 4}


def shared(case: Case) -> Case:
    """Return the case with sizes that 8 ranks can share, 4 of a model without attention."""
    if case.model_type == "mamba2":
        return case

    def size(key: str, value: Any) -> Any:
        if key == "num_attention_heads_per_layer":
            return [{6: 8, 12: 16}[heads] for heads in value]
        if key in (*_HEAD_COUNTS, "num_key_value_heads"):
            return _HEADS.get(value, value)
        if key in ("hidden_size", "n_embd", "d_model", "word_embed_proj_dim"):
            heads = next((case.config[name] for name in _HEAD_COUNTS if name in case.config), 6)
            return value * 8 // heads
        return (_SIZES | _EXPERTS | _HEADS_OF_STATES).get(key, value)

    return replace(case, config={key: size(key, value) for key, value in case.config.items()})


SHARED = [shared(case) for case in CASES]
MIXTURES = [case for case in SHARED if any(key in case.config for key in _EXPERTS)]
EXPERT_GRIDS = (Grid(4, 4), Grid(1, 2), Grid(1, 4), Grid(4, 2), Grid(8, 2))
is_mixture_kept, others = in_covering_set_of(MIXTURES), itertools.cycle(EXPERT_GRIDS[1:])
# Each mixture splits its experts among some ranks of several, and on one of the other grids in turn.
TURNS = {case: (EXPERT_GRIDS[0], next(others)) for case in MIXTURES if is_mixture_kept(case)}
EXPERT = slow_unless(lambda case, grid: grid in TURNS.get(case, ()), itertools.product(MIXTURES, EXPERT_GRIDS))
# Layers of these read caches of others, or vectors that are computed once: test_gemma_variants refuses their stages.
UNSTAGED = ("gemma3n", "gemma4")
STAGED = [case for case in SHARED if case.name not in UNSTAGED]
# Four ranks hold key/value heads twice, and two do not, which matters to attention and caches only. Stages cut between
# layers; those of two ranks each are cut in both ways.
is_staged, is_shared = in_covering_set_of(STAGED), in_covering_set_of(SHARED)
is_staged_alone, is_cached = in_covering_set_of(STAGED, STEPPED), in_covering_set_of(SHARED, CACHED)
STAGES = slow_unless(
    lambda case, grid: is_staged_alone(case) if grid.tensor == 1 else is_staged(case),
    [(c, Grid(n, 1, 2)) for c in STAGED for n in (1, 2)],
)
TENSOR = slow_unless(
    lambda case, tensor: is_cached(case) if tensor == 2 else is_shared(case), itertools.product(SHARED, (2, 4))
)


def errors(case: Case, grid: Grid) -> float:
    """Return the error of the ranks' logits against one rank's; infinite if the ranks of the last stage differ.

    Prompts of different lengths are prefilled together, then each slot takes two greedy steps.
    """
    one, ranks = executor_of(case, FP32), Ranks(model_of(case), grid)
    one.reset(3)
    ranks.reset(3)
    worst, ids, counts = 0.0, IDS, [9, 4, 7]
    for _ in range(3):
        ends = torch.arange(3), torch.tensor(counts) - 1
        want, all_logits = one.step(ids, counts)["logits"][ends], [each[ends] for each in ranks.step(ids, counts)]
        if any(not torch.equal(logits, all_logits[0]) for logits in all_logits):
            return float("inf")
        best = want.argmax(-1)
        assert torch.equal(all_logits[0].argmax(-1), best)
        worst = max(worst, relative_rms(all_logits[0], want))
        ids, counts = best[:, None], [1, 1, 1]
    return worst


@pytest.mark.parametrize(("case", "tensor"), TENSOR, ids=str)
def test_tensor_parallel_ranks_give_the_logits_and_tokens_of_one(case: Case, tensor: int) -> None:
    assert errors(case, Grid(tensor)) <= 1e-5


@pytest.mark.parametrize(("case", "grid"), EXPERT, ids=str)
def test_expert_parallel_ranks_give_the_logits_and_tokens_of_one(case: Case, grid: Grid) -> None:
    assert errors(case, grid) <= 1e-5


@pytest.mark.parametrize("case", slow_unless(in_covering_set_of(MIXTURES), MIXTURES), ids=str)
def test_a_rank_that_reads_chosen_experts_gives_the_logits_of_one(case: Case) -> None:
    """One token has fewer choices than a rank has experts, and some of them are of another rank."""
    one, ranks = executor_of(case, FP32), Ranks(model_of(case), Grid(1, 2))
    one.reset(1)
    ranks.reset(1)
    for token in range(6):
        ids = torch.tensor([[5 + token]])
        want, got = one.step(ids, [1])["logits"], ranks.step(ids, [1])
        assert torch.equal(*got)
        assert relative_rms(got[0], want) <= 1e-5


@pytest.mark.parametrize(("case", "grid"), STAGES, ids=str)
def test_pipeline_stages_give_the_logits_and_tokens_of_one(case: Case, grid: Grid) -> None:
    """A stage may have no attention, or no states."""
    assert errors(case, grid) <= 1e-5


def test_more_ranks_than_key_value_heads_hold_them_twice() -> None:
    case = next(case for case in SHARED if case.name == "llama")
    ranks = Ranks(model_of(case), Grid(8))
    assert [spec.layers[0].attention.num_key_value_heads for spec in ranks.specs] == [1] * 8
    assert errors(case, Grid(8)) <= 1e-5


@pytest.mark.parametrize("name", ["llama", "gemma2", "qwen3_moe"])
def test_16_bit_ranks_agree_with_one_to_rounding(name: str) -> None:
    case = next(case for case in SHARED if case.name == name)
    one, ranks = executor_of(case, FP16), Ranks(model_of(case), Grid(2), FP16)
    one.reset(3)
    ranks.reset(3)
    assert relative_rms(ranks.step(IDS)[0], one.step(IDS)["logits"]) <= 10 * FP16.tolerance


def test_weights_of_another_rank_are_noticed() -> None:
    """What the comparison above is worth: two ranks' output projections change places."""
    case = next(case for case in SHARED if case.name == "llama")
    model, path = model_of(case), "layers.1.attention.o.weight"
    right = Ranks(model, Grid(2))
    both = [right.weights[rank][path] for rank in (0, 1)]
    wrong = Ranks(model, Grid(2), changed={(0, path): both[1], (1, path): both[0]})
    for ranks in (right, wrong):
        ranks.reset(3)
    assert relative_rms(wrong.step(IDS)[0], right.step(IDS)[0]) > 0.1


@pytest.mark.parametrize(
    ("name", "grid"),
    [
        ("llama", Grid(2)),
        ("llama", Grid(4)),
        ("qwen3_moe", Grid(2, 2)),
        ("falcon-alibi", Grid(2)),
        ("gpt2", Grid(2, 1, 2)),
    ],
    ids=str,
)
def test_tensorrt_builds_every_rank(name: str, grid: Grid) -> None:
    case = next(case for case in SHARED if case.name == name)
    ranks = Ranks(model_of(case), grid, FP16)
    for graph in ranks.graphs[:: max(1, grid.ranks - 1)]:
        assert builds(graph, has_decode=True)


def test_each_expert_is_held_once() -> None:
    case = next(case for case in SHARED if case.name == "qwen3_moe")
    ranks, one = Ranks(model_of(case), Grid(4, 2, 2)), Ranks(model_of(case), Grid())

    def experts(held: dict[str, Any]) -> int:
        return sum(array.numel() for path, array in held.items() if "experts" in path)

    assert sum(map(experts, ranks.weights)) == experts(one.weights[0])
    assert max(map(experts, ranks.weights)) * 8 == experts(one.weights[0])


def test_mixtures_are_in_the_cases() -> None:
    """Every case whose model has experts, and no other."""
    mixtures = {
        case.name for case in SHARED if any(isinstance(each.feed_forward, MoeSpec) for each in spec_of(case).layers)
    }
    assert {case.name for case in MIXTURES} == mixtures
