"""Ranks that share the tokens of norms and residual sums give what one gives, in packed calls of any size."""

from __future__ import annotations

import itertools
import random
import re
from concurrent.futures import ThreadPoolExecutor
from dataclasses import fields
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

from tests.integration.parallel.test_networks import SHARED
from tests.integration.test_packed_calls import LENGTH, PAGED, SLOTS, STEPS, TOKENS, ids_of, random_call
from tests.selection import slow_unless
from tests.support.covering import in_covering_set_of, spec_of
from tests.support.decoder_cases import CASES
from tests.support.decoders import model_of, read_network, relative_rms, rtx
from tests.support.engine_decoders import config_of
from trtkit.builder.decoders import decoder_profiles, open_decoder
from trtkit.config.llm import LlmOptions, ParallelOptions
from trtkit.dtypes import FP16, FP32
from trtkit.errors import ConfigError, ExecutionError, NetworkError
from trtkit.llm.execution import Call, ReferenceDecoder
from trtkit.llm.execution.network import DecoderNetwork
from trtkit.llm.execution.packed import PackedCall
from trtkit.models.feed_forward import MlpSpec, MoeSpec, PerLayerSpec, StreamsSpec
from trtkit.models.parallel import SINGLE, Grid, rank_spec
from trtkit.models.rank_weights import RankWeights
from trtkit.models.share import Share
from trtkit.models.spec import BlockSpec, DecoderSpec, EmbeddingSpec, HeadSpec, LayerSpec
from trtkit.models.weights import find_weights
from trtkit.network.blocks.token_share import TokenShare
from trtkit.network.decoder import build_decoder
from trtkit.network.decoder_options import DecoderOptions
from trtkit.network.graph import Graph
from trtkit.planning.shares import between_blocks_of, gathers_of, reduces_of
from trtkit.reference import ThreadGroup
from trtkit.resolve import resolve

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.support.decoder_case import Case
    from trtkit.dtypes import DType
    from trtkit.network.graph import Tensor

SEQUENCED = [case for case in SHARED if not spec_of(case).states]
# Attention itself reads all tokens: what differs is what lies between blocks, and how they end.
BETWEEN = (DecoderSpec, EmbeddingSpec, HeadSpec, BlockSpec, LayerSpec, PerLayerSpec, StreamsSpec, MlpSpec, MoeSpec)
is_kept = in_covering_set_of(SEQUENCED, ((part.__name__, field.name) for part in BETWEEN for field in fields(part)))
RANKS = slow_unless(lambda case, ranks: ranks == 2 and is_kept(case), itertools.product(SEQUENCED, (2, 4)))
ROUNDED = {"gemma4": 2e-5}
"""Of a model that one rank in fp32 computes to 1.2e-5 of itself in fp64."""


def graphs_of(case: Case, grid: Grid, dtype: DType = FP32, **options: Any) -> Iterator[Graph]:
    """Yield the packed networks of all ranks."""
    model = model_of(case)
    whole = find_weights(model.spec, model.checkpoint)
    for rank in range(grid.ranks):
        spec = rank_spec(model.spec, grid, rank)
        graph, weights = Graph(rtx()), whole if grid == SINGLE else RankWeights(model.spec, spec, whole)
        build_decoder(graph, spec, weights, DecoderOptions(dtype, LENGTH, is_packed=True, **options))
        yield graph


class Decoders:
    """The ranks of a grid as threads, each with a network that is read from a file."""

    def __init__(self, case: Case, grid: Grid, widen: str | None = None, **options: Any) -> None:
        group, sizes = ThreadGroup(grid.ranks), (model_of(case).spec.vocab_size, LENGTH, LENGTH, True)
        self.decoders = []
        for rank, graph in enumerate(graphs_of(case, grid, **options)):
            network = DecoderNetwork(
                graph.layers(),
                graph.inputs,
                *sizes,
                has_read_only_caches=bool(options.keys() & {"page_tokens", "kv_cache"}) or grid.context > 1,
                token_multiple=grid.token_share(rank).count,
                context=grid.context_share(rank),
            )
            member = None if grid == SINGLE else group.member(rank)
            self.decoders.append(ReferenceDecoder(read_network(network), SLOTS, widen=widen, ranks=member))

    def logits(self, call: PackedCall) -> torch.Tensor:
        """Return the logits of a call, which all ranks must give alike."""
        with ThreadPoolExecutor(len(self.decoders)) as pool:
            outputs = list(pool.map(lambda decoder: decoder.forward_packed(call), self.decoders))
        assert all(torch.equal(logits, outputs[0]) for logits in outputs)
        return outputs[0].clone()


def calls(seed: int = 0, *, is_paged: bool = False) -> Iterator[PackedCall]:
    """Yield random mixed calls for sequences of TOKENS tokens."""
    r, ids, read = random.Random(seed), ids_of(seed), np.zeros(SLOTS, np.int64)
    for _ in range(STEPS):
        if (read == TOKENS).all():
            return
        yield (call := random_call(r, ids, read, are_neighbors=not is_paged))
        for part in (call.decode, call.prompts):
            read[part.slots] += part.counts


def used(call: PackedCall, logits: torch.Tensor) -> torch.Tensor:
    """Return the logits of tokens that somebody reads."""
    decode = call.decode
    is_new = np.arange(decode.ids.shape[1]) < decode.counts[:, None]
    return logits[torch.from_numpy(np.r_[is_new.reshape(-1), np.ones(len(call.places), bool)])]


def error_of(case: Case, grid: Grid, widen: str | None = None, **options: Any) -> float:
    """Return the error of the ranks' logits in random mixed calls against one rank's."""
    one, ranks = Decoders(case, SINGLE, widen, **options), Decoders(case, grid, widen, **options)
    got, want = [], []
    for call in calls(is_paged=not one.decoders[0].cache.needs_neighbors):
        got.append(used(call, ranks.logits(call)))
        want.append(used(call, one.logits(call)))
    return relative_rms(torch.cat(got), torch.cat(want))


@pytest.mark.parametrize(("case", "ranks"), RANKS, ids=str)
def test_ranks_that_share_tokens_give_the_logits_of_one(case: Case, ranks: int) -> None:
    assert error_of(case, Grid(ranks, sequence=True)) <= ROUNDED.get(case.name, 1e-5)


def test_all_ranks_give_the_hidden_states_of_all_tokens() -> None:
    """A call of 5 rows that decode and 8 tokens of prompts, on 4 ranks: 13 tokens, padded to 16."""
    ids, none = ids_of(0), np.zeros(SLOTS, np.int64)
    first, starts = Call(0, ids[:, :3], none, none + 3), none + 3
    prompts = Call(SLOTS - 2, ids[-2:, 3:7], starts[-2:], np.array([4, 4]), scattered=SLOTS - 2 + np.arange(2))
    call = PackedCall(Call(0, ids[:, 3:4], starts, np.array([1] * (SLOTS - 2) + [0, 0])), prompts, none[:0])
    results = []
    for grid in (SINGLE, Grid(4, sequence=True)):
        ranks = Decoders(llama(), grid, has_hidden_states=True)
        ranks.logits(PackedCall.of(first, has_all_logits=False))

        def hidden_of(decoder: ReferenceDecoder) -> torch.Tensor:
            return decoder._executor.run(decoder.packed_inputs(call))["hidden_states"]

        with ThreadPoolExecutor(grid.ranks) as pool:
            results.append(list(pool.map(hidden_of, ranks.decoders)))
    (expected,), hidden = results
    assert expected.shape[0] == SLOTS + 8
    for each in hidden:
        torch.testing.assert_close(each, expected, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("name", ["llama", "gemma4", "gpt_oss"])
def test_without_rounding_they_are_equal(name: str) -> None:
    case = next(case for case in SEQUENCED if case.name == name)
    assert error_of(case, Grid(2, sequence=True), widen="fp64") <= 1e-7  # logits are fp32


def llama() -> Case:
    return next(case for case in SEQUENCED if case.name == "llama")


@pytest.mark.parametrize(
    ("name", "grid", "options"),
    [
        ("llama", Grid(8, sequence=True), {}),
        ("llama", Grid(2, sequence=True), PAGED),
        ("qwen3_moe", Grid(4, 2, sequence=True), {}),
        ("deepseek_v3", Grid(4, 4, sequence=True), PAGED),
    ],
    ids=str,
)
def test_more_ranks_pages_and_groups_of_experts(name: str, grid: Grid, options: dict[str, Any]) -> None:
    case = next(case for case in SEQUENCED if case.name == name)
    assert error_of(case, grid, **options) <= 1e-5


@pytest.mark.parametrize("tokens", [1, 2, 3, 4, 5, 7, 8])
def test_any_number_of_tokens_is_padded_to_the_ranks(tokens: int) -> None:
    """In fp64, so that a wrong token of padding would show; fewer tokens than ranks, too."""
    one, ranks = Decoders(llama(), SINGLE, "fp64"), Decoders(llama(), Grid(4, sequence=True), "fp64")
    none = np.zeros(1, np.int64)
    call = PackedCall.of(Call(0, ids_of(0)[:1, :tokens], none, none + tokens), has_all_logits=True)
    assert relative_rms(ranks.logits(call), one.logits(call)) <= 1e-6  # logits are in fp32
    counts = ranks.decoders[0].calls
    assert counts.computed_tokens == -(-tokens // 4) * 4
    assert counts.padded_tokens == -tokens % 4


def test_norms_and_residual_sums_are_of_a_share_of_the_tokens() -> None:
    """What it is for: each rank computes a fourth of the rows, and gathers them for products only."""
    rows: list[dict[str, int]] = []
    for grid in (Grid(4), Grid(4, sequence=True)):
        ranks, none = Decoders(llama(), grid), np.zeros(1, np.int64)
        names = {"layers.0/sum", "layers.0/mlp_norm/prod_1", "layers.1/sum_1", "layers.0/mlp/gate/matmul"}
        with ThreadPoolExecutor(4) as pool:
            call = Call(0, ids_of(0)[:1, :8], none, none + 8)
            kept = list(pool.map(lambda decoder, call=call, names=names: decoder.tensors(call, names), ranks.decoders))
        rows.append({name: len(kept[0][name]) for name in names})
    assert set(rows[0].values()) == {8}
    assert rows[1] == {**dict.fromkeys(rows[0], 2), "layers.0/mlp/gate/matmul": 8}


@pytest.mark.parametrize("case", slow_unless(is_kept, SEQUENCED), ids=str)
def test_plans_count_the_collectives_of_a_rank(case: Case) -> None:
    spec, names = spec_of(case), []
    graph = next(graphs_of(case, Grid(2, sequence=True)))
    for node in graph.layers().nodes:
        names += [node.name.rpartition("/")[2].rstrip("_0123456789")] if node.kind == "DIST_COLLECTIVE" else []
    assert names.count("reduce_scatter") == 1 + sum(map(reduces_of, spec.layers))
    assert names.count("all_gather") == 1 + sum(gathers_of(layer, spec.block) for layer in spec.layers)  # of logits


@pytest.mark.parametrize("name", ["llama", "gemma2", "cohere", "phi", "opt-post-norm", "qwen3_moe"])
def test_plans_count_the_norms_and_sums_of_a_rank(name: str) -> None:
    """By their names: in the scope of a layer, sums, and the last result of each norm."""
    case = next(case for case in SEQUENCED if case.name == name)
    spec, graph = spec_of(case), next(graphs_of(case, Grid(2, sequence=True)))
    paths = {node.name for node in graph.layers().nodes}
    count = 0
    for index in range(len(spec.layers)):
        own = {path.removeprefix(f"layers.{index}/") for path in paths if path.startswith(f"layers.{index}/")}
        count += len({path for path in own if re.fullmatch(r"sum(_\d+)?", path)})
        count += len({path.partition("/")[0] for path in own if re.match(r"\w*_norm/", path)})
    assert count == sum(between_blocks_of(layer, spec.block) for layer in spec.layers)


def test_a_share_of_other_tokens_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the comparisons are worth: logits are taken from the rows after a rank's own."""
    picked = TokenShare.picked

    def shifted(share: TokenShare, x: Tensor, index: Tensor) -> Tensor:
        return picked(share, x, index if share.is_whole else index + 1)

    monkeypatch.setattr(TokenShare, "picked", shifted)
    assert error_of(llama(), Grid(2, sequence=True)) > 0.1


def test_positions_of_another_share_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A share off by one: learned positions are added to a rank's own tokens."""
    case, right = next(case for case in SEQUENCED if case.name == "gpt2"), TokenShare.own

    def wrong(share: TokenShare, x: Tensor) -> Tensor:
        if share.is_whole:
            return x
        other = TokenShare(Share((share.share.index + 1) % share.share.count, share.share.count))
        other.padded(x)
        return right(other, x)

    monkeypatch.setattr(TokenShare, "own", wrong)
    assert error_of(case, Grid(2, sequence=True)) > 0.1


def test_a_gather_that_is_missing_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TokenShare, "enter", lambda _, x: x)
    with pytest.raises((ExecutionError, NetworkError)):
        error_of(llama(), Grid(2, sequence=True))


@pytest.mark.parametrize(
    ("name", "grid"),
    [
        ("llama", Grid(2, sequence=True)),
        ("gemma2", Grid(4, sequence=True)),
        ("gpt2", Grid(8, sequence=True)),
        ("cohere", Grid(2, sequence=True)),
        pytest.param("gemma3n", Grid(2, sequence=True), marks=pytest.mark.slow),
        ("qwen3_moe", Grid(4, 2, sequence=True)),
    ],
    ids=str,
)
def test_tensorrt_builds_every_rank(name: str, grid: Grid) -> None:
    case = next(case for case in SEQUENCED if case.name == name)
    options = LlmOptions(max_batch_size=3, max_sequence_length=LENGTH, max_prefill_length=16)
    graphs = list(graphs_of(case, grid, FP16))
    for graph in graphs[:: grid.ranks - 1]:
        assert builds(graph, options)


def builds(graph: Graph, options: LlmOptions) -> bool:
    """Whether TensorRT builds a network with the profiles of a language model."""
    config = graph.builder.create_builder_config()
    config.builder_optimization_level = 0
    for shapes in decoder_profiles(graph.inputs, options):
        profile = graph.builder.create_optimization_profile()
        for tensor, sizes in shapes.items():
            profile.set_shape(tensor, sizes.min, sizes.opt, sizes.max)
        config.add_optimization_profile(profile)
    return graph.builder.build_serialized_network(graph.network, config) is not None


@pytest.mark.parametrize(
    ("name", "options", "obstacle"),
    [
        ("mamba2", {}, "recurrent layers"),
        ("qwen3_5", {}, "recurrent layers"),
        ("llama", {"batching": "separate"}, "`llm.batching: separate`"),
    ],
)
def test_calls_whose_tokens_cannot_be_shared_are_refused(
    name: str, options: dict[str, Any], obstacle: str, tmp_path: Path
) -> None:
    config = config_of(next(case for case in CASES if case.name == name), tmp_path, **options)
    config = config.model_copy(update={"parallel": ParallelOptions(tensor=2, sequence=True)})
    with pytest.raises(ConfigError) as error:
        open_decoder(resolve(config))
    problem = next(each for each in error.value.problems if each.where == "parallel.sequence")
    assert problem.what == f"ranks cannot share the tokens of a call with {obstacle} yet"
    assert problem.fix == "remove it"


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({}, "`sequence` needs `tensor` of at least 2, got 1; raise it, or remove `sequence`"),
        ({"expert": 2}, "`sequence` needs `tensor` of at least 2, got 1; raise it, or remove `sequence`"),
        (
            {"tensor": 2, "pipeline": 2},
            "`sequence` does not work with pipeline stages, got 2; set `pipeline: 1`, or remove `sequence`",
        ),
    ],
)
def test_grids_whose_tokens_cannot_be_shared_are_refused(options: dict[str, int], text: str) -> None:
    with pytest.raises(ValueError, match="sequence") as error:
        ParallelOptions(**options, sequence=True)
    assert text in str(error.value)


def test_separate_calls_are_refused_by_the_network() -> None:
    model = model_of(llama())
    spec = rank_spec(model.spec, Grid(2, sequence=True), 0)
    with pytest.raises(NetworkError, match="calls that are not packed"):
        build_decoder(Graph(rtx()), spec, {}, DecoderOptions(FP32, LENGTH))
