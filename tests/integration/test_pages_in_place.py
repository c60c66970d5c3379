"""Attention that reads pages in place: the custom op PagedAttention, here by its lowering."""

from __future__ import annotations

import random
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

from tests.integration.test_in_flight_batching import draw
from tests.selection import slow_unless
from tests.support.covering import CACHED, in_covering_set_of
from tests.support.decoder_cases import CASES
from tests.support.decoders import builds, graph_of, model_of, relative_rms, rtx
from tests.support.engine_decoders import config_of
from tests.support.generation import (
    LENGTH,
    MAX_PREFILL,
    PAGE_TOKENS,
    SLOTS,
    alone,
    caches_of,
    case_of,
    engine,
    is_clean,
    network_of,
    run,
)
from trtkit.builder.build import build_bundle
from trtkit.builder.decoder_stage import use_plugin
from trtkit.builder.decoders import open_decoder
from trtkit.config.schema import CustomOpOptions
from trtkit.dtypes import BF16, FP16, FP32
from trtkit.errors import ConfigError
from trtkit.jobs.runner import new_runner
from trtkit.llm.engine import LookupProposer
from trtkit.llm.execution import Call, DecoderNetwork, ReferenceDecoder
from trtkit.llm.execution.paged_cache import open_cache
from trtkit.models.parallel import Grid, rank_spec
from trtkit.models.rank_weights import RankWeights
from trtkit.models.weights import find_weights
from trtkit.network.decoder import build_decoder
from trtkit.network.decoder_options import DecoderOptions
from trtkit.network.graph import Graph
from trtkit.network.paged_layers import obstacles
from trtkit.quantized_matrix import KvQuantization, scales_of_pairs
from trtkit.reference import ThreadGroup
from trtkit.resolve import resolve

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.decoder_case import Case
    from trtkit.config.schema import ModelConfig
    from trtkit.quantization_methods import CacheFormat

ATTENDING = [case for case in CASES if case.name != "mamba2"]
IN_PLACE = DecoderOptions(FP32, LENGTH, has_all_logits=True, page_tokens=PAGE_TOKENS, has_pages_in_place=True)


def rows_of(starts: list[int], ids: list[list[int]]) -> Call:
    """Return a call of slots from 0 on that go on at `starts`; shorter rows are padded, empty ones idle."""
    size = max(map(len, ids))
    padded = np.array([row + [0] * (size - len(row)) for row in ids])
    return Call(0, padded, np.array(starts), np.array([len(row) for row in ids]))


PIECES = ((8, 4, 5), (8, 0, 1), (6, 4, 7), (1, 1, 1))


@pytest.mark.parametrize("case", slow_unless(in_covering_set_of(ATTENDING, CACHED), ATTENDING), ids=str)
def test_logits_are_those_of_transformers(case: Case) -> None:
    """Prompts of three slots in pieces; a row in between is idle; the last piece is one new token of each."""
    model, r = model_of(case), random.Random(1)
    tested = ReferenceDecoder(network_of(case, has_all_logits=True, page_tokens=PAGE_TOKENS, in_place=True), 3)
    prompts = [[r.randrange(3, 67) for _ in range(sum(sizes))] for sizes in zip(*PIECES, strict=True)]
    read: list[list[torch.Tensor]] = [[], [], []]
    starts = [0, 0, 0]
    for sizes in PIECES:
        ids = [prompt[at : at + size] for prompt, at, size in zip(prompts, starts, sizes, strict=True)]
        logits = tested.forward(rows_of(starts, ids))
        for row, size in enumerate(sizes):
            read[row].append(logits[row, :size])
            starts[row] += size
    for prompt, parts in zip(prompts, read, strict=True):
        assert relative_rms(torch.cat(parts), model.logits(torch.tensor([prompt]))[0]) <= 1e-5


def answers_of(case: Case, options: DecoderOptions) -> tuple[list[torch.Tensor], list[list[int]]]:
    """Return the logits of two slots' prompts in pieces, and the most likely tokens that follow."""
    model, read = model_of(case), []
    sizes = model.spec.vocab_size, LENGTH, MAX_PREFILL, True
    graph = graph_of(model, options)
    network = DecoderNetwork(graph.layers(), graph.inputs, *sizes, has_read_only_caches=True)
    tested, starts, tokens = ReferenceDecoder(network, 2), [0, 0], [[], []]
    ids = [[5, 9, 30, 12, 44, 7, 8, 11], [61, 3, 17]]
    while min(map(len, tokens)) < 8:
        logits = tested.forward(rows_of(starts, ids))
        last = [logits[row, : len(each)] for row, each in enumerate(ids)]
        read += last
        starts = [start + len(each) for start, each in zip(starts, ids, strict=True)]
        ids = [[int(each[-1].argmax())] for each in last]
        tokens = [known + each for known, each in zip(tokens, ids, strict=True)]
    return read, tokens


@pytest.mark.parametrize(("model_type", "kv_format"), [("gpt_oss", "int8"), ("gemma2", "fp8")])
def test_caches_in_8_bits_give_what_linear_ones_and_copies_give(model_type: str, kv_format: CacheFormat) -> None:
    """Scales differ between layers, and between keys and values."""
    case, kv_cache = case_of(model_type), KvQuantization(kv_format, scales_of_pairs((0.02, 0.023), (0.03, 0.027)))
    in_place = replace(IN_PLACE, kv_cache=kv_cache)
    assert {*obstacles(model_of(case).spec, in_place).values()} == {""}
    logits, tokens = answers_of(case, in_place)
    copied = replace(in_place, has_pages_in_place=False)
    for other in (copied, replace(copied, page_tokens=None)):
        wanted, same = answers_of(case, other)
        assert same == tokens
        assert relative_rms(torch.cat(logits), torch.cat(wanted)) <= 1e-5


@pytest.mark.parametrize(
    "options",
    [{"overlap": True, "token_budget": 3, "min_shared_tokens": 1}, {"proposer": LookupProposer(4, shortest=1)}],
    ids=["overlap", "speculation"],
)
def test_requests_that_come_and_go_get_what_each_gets_alone(options: dict[str, object]) -> None:
    """As on linear caches: beams, beginnings that are shared, guesses; few pages, so that the host takes some."""
    r = random.Random(3)
    asked = {f"r{index}": draw(r) for index in range(24)}
    with caches_of(18, in_place=True):
        tested = engine(SLOTS, **options)
    found = run(tested, [each.request(name) for name, each in asked.items()])
    assert {name: tuple(each.token_ids) for name, each in found.items()} == {
        name: alone(each) for name, each in asked.items()
    }
    assert is_clean(tested)


@pytest.mark.parametrize("in_place", [False, True])
def test_rows_of_unlike_lengths_run_together_unless_pages_are_copied(in_place: bool) -> None:
    inputs = network_of(case_of("llama"), page_tokens=PAGE_TOKENS, in_place=in_place).inputs
    cache = open_cache(inputs, 3, 1024, lambda _: torch.float16)
    placed = cache.prepare(rows_of([800, 2, 3], [[5], [6], [7]]))
    assert placed.runs_together == in_place
    assert ("key_positions" in {spec.name for spec in inputs}) != in_place


def test_ranks_share_heads_and_layers() -> None:
    """Two stages of two ranks each, as threads; the second stage has no input for positions but of what turns."""
    model, grid = model_of(next(case for case in CASES if case.name == "gemma2")), Grid(tensor=2, pipeline=2)
    groups, whole = [ThreadGroup(2), ThreadGroup(2)], find_weights(model.spec, model.checkpoint)
    ranks = []
    for rank in range(grid.ranks):
        spec, graph = rank_spec(model.spec, grid, rank), Graph(rtx())
        build_decoder(graph, spec, RankWeights(model.spec, spec, whole), IN_PLACE)
        network = DecoderNetwork(
            graph.layers(), graph.inputs, 67, LENGTH, MAX_PREFILL, has_all_logits=True, has_read_only_caches=True
        )
        ranks.append(ReferenceDecoder(network, 2, ranks=groups[rank // 2].member(rank % 2)))
    prompts, read = [[5, 9, 30, 12, 44, 7, 8], [61, 3, 17]], []
    for start, size in ((0, 4), (4, 2), (6, 1)):
        call = rows_of([min(start, len(prompt)) for prompt in prompts], [p[start : start + size] for p in prompts])
        with ThreadPoolExecutor(2) as pool:
            hidden = list(pool.map(lambda each, call=call: each.forward(call), ranks[:2]))
            given = Call(0, call.ids, call.starts, call.counts, hidden=hidden[0])
            logits = list(pool.map(lambda each, given=given: each.forward(given), ranks[2:]))
        assert torch.equal(*logits)
        read.append(logits[0][0, :size])
    assert relative_rms(torch.cat(read), model.logits(torch.tensor(prompts[:1]))[0]) <= 1e-5


@pytest.mark.parametrize(
    ("name", "options", "expected"),
    [
        ("llama4", {}, {"", "chunked attention"}),
        ("bloom", {}, {"ALiBi"}),
        ("deepseek_v2", {}, {"latent attention"}),
        ("gpt_oss", {}, {""}),
        ("llama", {"dtype": BF16}, {""}),
        ("llama", {"has_visible_lengths": True}, {"images whose tokens see each other"}),
        ("llama", {"kv_cache": KvQuantization("int8", scales_of_pairs((1.0, 1.0), (1.0, 1.0)))}, {""}),
        ("gpt_oss", {"kv_cache": KvQuantization("fp8", scales_of_pairs((1.0, 1.0), (1.0, 1.0))), "dtype": FP16}, {""}),
    ],
)
def test_what_the_plugin_does_not_compute_is_known_by_name(
    name: str, options: dict[str, Any], expected: set[str]
) -> None:
    spec = model_of(next(case for case in CASES if case.name == name)).spec
    assert set(obstacles(spec, replace(IN_PLACE, **options)).values()) == expected


def test_heads_that_are_too_large_for_the_plugin_are_known_by_name() -> None:
    spec = model_of(case_of("llama")).spec
    layers = zip(spec.layers, spec.attentions, strict=True)
    large = tuple(replace(layer, mixer=replace(attention, head_dim=72)) for layer, attention in layers)
    assert set(obstacles(replace(spec, layers=large), IN_PLACE).values()) == {
        "heads of 72 in fp32, its plugin takes up to 64"
    }


def test_layers_that_share_caches_read_them_alike() -> None:
    """One that the plugin cannot compute keeps those that share its caches from reading pages in place."""
    spec = model_of(case_of("gemma3n_text")).spec
    owner = next(each.cache_of for each in spec.attentions if each.cache_of is not None)
    layers = list(spec.layers)
    layers[owner] = replace(layers[owner], mixer=replace(spec.attentions[owner], has_alibi=True))
    sharing = {owner, *(index for index, each in enumerate(spec.attentions) if each.cache_of == owner)}
    found = obstacles(replace(spec, layers=tuple(layers)), IN_PLACE)
    assert {index for index, obstacle in found.items() if obstacle} == sharing
    assert len(sharing) > 1


def paged(case: Case, folder: Path, plugins: str, **options: Any) -> ModelConfig:
    """Return a config whose attention may be plugins."""
    config = config_of(case, folder, **{"kv": "paged", **options})
    return config.model_copy(update={"custom_ops": CustomOpOptions.model_validate({"plugins": plugins})})


def test_a_backend_without_plugins_copies_pages_or_says_so(tmp_path: Path) -> None:
    opened = open_decoder(resolve(paged(case_of("llama"), tmp_path, "auto")))
    assert not opened.options("tensorrt_rtx").has_pages_in_place
    assert opened.options("tensorrt").has_pages_in_place
    always = paged(case_of("llama"), tmp_path, "always")
    with pytest.raises(
        ConfigError, match=r"custom_ops.plugins: the backend `tensorrt_rtx` has no plugins\n.*set `never`"
    ):
        build_bundle(always, tmp_path / "bundle", new_runner(), use_cache=False)


def test_linear_caches_have_no_plugin(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        resolve(paged(case_of("llama"), tmp_path, "auto", kv="linear"))
    assert str(caught.value) == (
        "the config does not fit a decoder-only LLM\n"
        "  custom_ops.plugins: does not apply to a decoder-only LLM\n"
        "    fix: remove it; with `llm.kv: paged`, attention can be a plugin"
    )


def test_layers_without_a_plugin_are_named(tmp_path: Path) -> None:
    case, full = next(case for case in CASES if case.name == "llama4"), replace(rtx(), name="tensorrt")
    opened = open_decoder(resolve(paged(case, tmp_path, "always", max_sequence_length=64)))
    chunked = [index for index, each in enumerate(opened.spec.attentions) if each.chunk]
    layers = ", ".join(map(str, chunked))
    with pytest.raises(ConfigError) as caught:
        use_plugin(Graph(full), opened, (90,))
    assert str(caught.value) == (
        "the config does not fit its model\n"
        "  custom_ops.plugins: the plugin of PagedAttention cannot be the attention of layers "
        f"{layers} (chunked attention)\n"
        "    fix: set `auto`, which lets these layers copy their pages, or `never`"
    )
    bloom = open_decoder(resolve(paged(case_of("bloom"), tmp_path / "other", "auto")))
    assert use_plugin(Graph(full), bloom, (90,)) == (
        "0 of 2 layers with attention read pages in place, by a plugin; copies of pages in layers 0, 1 (ALiBi)"
    )


@pytest.mark.parametrize("kv_format", [None, "int8", "fp8"])
def test_tensorrt_builds_what_stands_for_the_plugin_here(kv_format: CacheFormat | None) -> None:
    kv_cache = None if kv_format is None else KvQuantization(kv_format, scales_of_pairs((0.03,) * 2, (0.03,) * 2))
    options = replace(IN_PLACE, dtype=FP16, page_tokens=16, kv_cache=kv_cache)
    assert builds(graph_of(model_of(case_of("gemma2")), options), has_decode=True)
