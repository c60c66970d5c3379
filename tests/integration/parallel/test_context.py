"""Ranks that share cached positions give what one rank gives, in packed calls of any size."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

from tests.integration.parallel.test_networks import SHARED
from tests.integration.parallel.test_sequence import Decoders, builds, calls, error_of, graphs_of, used
from tests.integration.test_packed_calls import ids_of
from tests.selection import slow_unless
from tests.support.covering import CACHED, in_covering_set_of, spec_of
from tests.support.decoder_cases import CASES
from tests.support.decoders import relative_rms
from tests.support.engine_decoders import config_of
from trtkit.builder.decoders import open_decoder
from trtkit.config.llm import LlmOptions, ParallelOptions
from trtkit.dtypes import FP16, FP32
from trtkit.errors import ConfigError
from trtkit.llm.execution import Call
from trtkit.llm.execution.packed import PackedCall
from trtkit.models import context
from trtkit.models.parallel import SINGLE, Grid, check_grid, rank_spec
from trtkit.network.blocks import attention
from trtkit.planning.shares import context_bytes
from trtkit.quantized_matrix import KvQuantization, scales_of_pairs
from trtkit.resolve import resolve

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.decoder_case import Case
    from trtkit.network.graph import Tensor

TWO, FOUR = Grid(2, context=2), Grid(4, context=4)
PAGED = {"page_tokens": 4}
ATTENDING = [case for case in SHARED if spec_of(case).attentions]
PAGEABLE = [case for case in ATTENDING if not spec_of(case).states]
is_kept = in_covering_set_of(ATTENDING, CACHED)
LINEAR = slow_unless(is_kept, ATTENDING)
IN_PAGES = slow_unless(lambda case: is_kept(case) and not spec_of(case).states, PAGEABLE)
ROUNDED = {"gemma4": 3e-5}
"""Of a model that one rank in fp32 computes to 1.2e-5 of itself in fp64."""


@pytest.fixture(autouse=True)
def _short_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let linear caches be dealt out in blocks of 3 tokens, so that short sequences go round several times."""
    monkeypatch.setattr(context, "LINEAR_BLOCK", 3)


def case_of(name: str) -> Case:
    return next(case for case in SHARED if case.name == name)


@pytest.mark.parametrize("case", LINEAR, ids=str)
def test_ranks_that_share_positions_give_the_logits_of_one(case: Case) -> None:
    assert error_of(case, TWO) <= ROUNDED.get(case.name, 1e-5)


@pytest.mark.parametrize("case", IN_PAGES, ids=str)
def test_so_do_ranks_with_pages(case: Case) -> None:
    """Four ranks have a token of each page; some hold key/value heads twice before they gather them."""
    assert error_of(case, FOUR, **PAGED) <= ROUNDED.get(case.name, 1e-5)


@pytest.mark.parametrize("name", ["llama", "gemma2", "deepseek_v3", "gpt_oss", "bloom"])
def test_without_rounding_they_are_equal(name: str) -> None:
    """Full and sliding attention with soft caps, latent attention, sinks, and ALiBi."""
    assert error_of(case_of(name), FOUR, widen="fp64") <= 2e-7  # logits and what ranks exchange are fp32


@pytest.mark.parametrize(
    ("name", "grid", "options"),
    [
        ("llama", Grid(8, context=8), {}),
        ("llama", Grid(4, sequence=True, context=4), PAGED),
        ("qwen3_moe", Grid(4, 2, context=4), {}),
        ("deepseek_v3", Grid(4, 4, context=4), PAGED),
    ],
    ids=str,
)
def test_more_ranks_shared_tokens_and_groups_of_experts(name: str, grid: Grid, options: dict[str, Any]) -> None:
    assert error_of(case_of(name), grid, **options) <= 1e-5


@pytest.mark.parametrize("kv_heads", [6, 3, 1])
def test_an_odd_number_of_ranks(kv_heads: int) -> None:
    """Of 6 query heads; ranks bring two key/value heads each, one each, or all the same one."""
    case = next(case for case in CASES if case.name == "llama")
    config = {**case.config, "num_key_value_heads": kv_heads, "num_attention_heads": 6, "intermediate_size": 81}
    assert error_of(replace(case, config=config), Grid(3, context=3)) <= 1e-5


@pytest.mark.parametrize("stored", ["int8", "fp8"])
@pytest.mark.parametrize("pages", [{}, PAGED], ids=["linear", "paged"])
def test_caches_in_eight_bits_round_as_those_of_one_rank(stored: Any, pages: dict[str, Any]) -> None:
    case = case_of("llama")
    scales = (0.05,) * len(spec_of(case).layers)
    kv = KvQuantization(stored, scales_of_pairs(scales, scales))
    assert error_of(case, FOUR, widen="fp64", kv_cache=kv, **pages) <= 1e-6


def test_ranks_without_any_key_count_for_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """With blocks that are longer than the sequence, seven of eight ranks never have a key."""
    monkeypatch.setattr(context, "LINEAR_BLOCK", 64)
    one, ranks = Decoders(case_of("llama"), SINGLE, "fp64"), Decoders(case_of("llama"), Grid(8, context=8), "fp64")
    for call in calls(seed=3):
        logits = ranks.logits(call)
        assert torch.isfinite(logits).all()
        assert relative_rms(used(call, logits), used(call, one.logits(call))) <= 1e-6
    arrays = [decoder.cache.view(slice(0, 5)) for decoder in ranks.decoders]
    assert all(array[:, :, :-1].abs().max() == 0 for array in arrays[1]["past_key_0"][None])
    assert arrays[0]["past_key_0"].abs().max() > 0


@pytest.mark.parametrize("tokens", [1, 2, 3, 4, 6, 7, 13])
def test_prompts_that_end_anywhere_in_a_block(tokens: int) -> None:
    """A chunk crosses the borders of blocks; a token is then decoded after it."""
    one, ranks = Decoders(case_of("llama"), SINGLE, "fp64"), Decoders(case_of("llama"), FOUR, "fp64")
    none, ids = np.zeros(1, np.int64), ids_of(0)[:1]
    for call in (
        Call(0, ids[:, :tokens], none, none + tokens),
        Call(0, ids[:, tokens:][:, :1], none + tokens, none + 1),
    ):
        packed = PackedCall.of(call, has_all_logits=True)
        assert relative_rms(ranks.logits(packed), one.logits(packed)) <= 1e-6


def test_each_rank_holds_its_positions_only() -> None:
    one, ranks = Decoders(case_of("llama"), SINGLE), Decoders(case_of("llama"), FOUR)
    none = np.zeros(1, np.int64)
    call = PackedCall.of(Call(0, ids_of(0)[:1, :26], none, none + 26), has_all_logits=True)
    one.logits(call)
    ranks.logits(call)
    whole = one.decoders[0].cache.view(slice(0, 1))["past_key_0"]
    for decoder in ranks.decoders:
        share, own = decoder.cache.context, decoder.cache.view(slice(0, 1))["past_key_0"]
        assert own.shape == (1, 2, 12, whole.shape[-1])  # both heads; 32 tokens are 9, and a block is nobody's
        positions = share.positions(share.count(26))
        torch.testing.assert_close(own[:, :, : len(positions)], whole[:, :, positions])


def test_a_rank_that_writes_the_positions_of_another_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the comparisons are worth: ranks keep the tokens of the next one's turn."""
    right = context.ContextShare.is_here
    monkeypatch.setattr(context.ContextShare, "is_here", lambda share, at: right(share, at - share.block))
    assert error_of(case_of("llama"), TWO) > 0.01


def test_merging_as_if_all_ranks_had_as_many_keys_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    merged = attention.merged_attention

    def wrong(parts: Tensor, sinks: Tensor | None = None) -> Tensor:
        size = parts.shape[-1] - 2
        first, last = attention.take(parts, -1, 0, size + 1), attention.take(parts, -1, size + 1, 1)
        return merged(attention.concat([first, last * 0.0 + 1.0], -1), sinks)

    monkeypatch.setattr(attention, "merged_attention", wrong)
    assert error_of(case_of("llama"), TWO) > 1e-3


@pytest.mark.parametrize("name", ["llama", "deepseek_v3", "gemma3n", "gpt_oss", "qwen3_5"])
def test_plans_count_what_ranks_exchange(name: str) -> None:
    """By the sizes that the network's collectives give of one token, in fp32."""
    spec, sizes = spec_of(case_of(name)), []
    layers = next(graphs_of(case_of(name), FOUR)).layers()
    for node in layers.nodes:
        if node.kind == "DIST_COLLECTIVE" and ("gather_heads" in node.name or "scatter_heads" in node.name):
            shape = layers.spec(node.outputs[0]).shape
            assert shape.count(-1) == 1
            sizes.append(4 * abs(int(np.prod(shape))))
    assert sizes == context_bytes(spec, FOUR, FP32)


@pytest.mark.parametrize(
    ("name", "grid", "options"),
    [
        ("llama", FOUR, {}),
        ("llama", FOUR, {"kv": "paged", "page_tokens": 16}),
        pytest.param("gemma2", TWO, {}, marks=pytest.mark.slow),
        pytest.param("deepseek_v3", FOUR, {"kv": "paged", "page_tokens": 16}, marks=pytest.mark.slow),
        pytest.param("qwen3_5", TWO, {}, marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_tensorrt_builds_every_rank(name: str, grid: Grid, options: dict[str, Any]) -> None:
    llm = LlmOptions(max_batch_size=3, max_sequence_length=32, max_prefill_length=16, **options)
    graphs = list(graphs_of(case_of(name), grid, FP16, page_tokens=llm.page_size))
    for graph in graphs[:: grid.ranks - 1]:
        assert builds(graph, llm)


@pytest.mark.parametrize(
    ("name", "options", "where", "what", "fix"),
    [
        ("llama", {"speculator": "heads"}, "llm.speculator", "with a draft head yet", "leave it out"),
        (
            "llama",
            {"kv_window": "used"},
            "llm.kv_window",
            "with `kv_window: used` yet",
            "use `full`, or `llm.kv: paged`",
        ),
        (
            "deepseek_v3",
            {"latent_attention": "expanded"},
            "llm.latent_attention",
            "with `expanded` yet",
            "use `absorbed`",
        ),
    ],
)
def test_what_ranks_cannot_do_with_shared_positions_is_refused(
    name: str, options: dict[str, Any], where: str, what: str, fix: str, tmp_path: Path
) -> None:
    config = config_of(case_of(name), tmp_path, **options)
    config = config.model_copy(update={"parallel": ParallelOptions(tensor=2, context=2)})
    with pytest.raises(ConfigError) as error:
        open_decoder(resolve(config))
    problem = next(each for each in error.value.problems if each.where == where)
    assert problem.what == f"ranks cannot share cached positions (`parallel.context`) {what}"
    assert problem.fix == fix


def test_pages_that_ranks_cannot_share_equally_are_refused(tmp_path: Path) -> None:
    config = config_of(next(case for case in CASES if case.name == "llama"), tmp_path, kv="paged", page_tokens=32)
    config = config.model_copy(update={"parallel": ParallelOptions(tensor=3, context=3)})
    with pytest.raises(ConfigError) as error:
        open_decoder(resolve(config))
    (problem,) = error.value.problems
    assert (problem.where, problem.what) == ("parallel.context", "3 ranks cannot share pages of 32 tokens equally")
    assert problem.fix == "use one of 1, 2, 4, 8, 16, 32, or `llm.kv: linear`"


def test_a_model_without_caches_is_refused() -> None:
    case = next(case for case in SHARED if not spec_of(case).attentions)
    with pytest.raises(ConfigError, match="a model without attention caches no positions"):
        check_grid(spec_of(case), TWO, "here")


@pytest.mark.parametrize("context_ranks", [2, 3, 8])
def test_other_ranks_than_those_of_a_layer_are_refused(context_ranks: int) -> None:
    with pytest.raises(ValueError, match="is not `tensor`, 4: all ranks of a layer share its positions; use 4, or"):
        ParallelOptions(tensor=4, context=context_ranks)


@pytest.mark.parametrize(("name", "places"), [("llama", (0, 2)), ("deepseek_v3", (0,))])
def test_ranks_cache_all_heads_once(name: str, places: tuple[int, ...]) -> None:
    """Of 2 key/value heads, which four ranks bring twice; and of a latent vector, which all ranks have."""
    for rank in range(4):
        layer = rank_spec(spec_of(case_of(name)), FOUR, rank).layers[0].attention
        assert layer.context_heads == places
        assert layer.cached_heads == len(places)
