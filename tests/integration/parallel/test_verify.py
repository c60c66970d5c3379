"""`trtkit verify` runs all ranks, compares them with transformers and with one rank, and names a layer cut wrongly."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import numpy as np
import pytest

from tests.support import tiny_llm
from trtkit.bundle.bundle import open_bundle
from trtkit.bundle.known import read_all_known
from trtkit.models.rank_weights import RankWeights
from trtkit.network.blocks import attention
from trtkit.network.blocks.token_share import TokenShare
from trtkit.network.ops.gather import reorder
from trtkit.network.ops.shape import concat, reshape, split

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.conftest import Ran
    from trtkit.models.rank_weights import Weight
    from trtkit.network.graph import Tensor

GRID = "parallel: {tensor: 2, pipeline: 2}"


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("ranks")
    tiny_llm.save(folder / "model", num_attention_heads=8, hidden_size=64, num_hidden_layers=3)
    path = folder / "ranks.yaml"
    sizes = "llm: {max_batch_size: 2, max_sequence_length: 96, max_prefill_length: 48}"
    path.write_text(f"source: {{hf: model}}\nprecision: fp32\n{sizes}\n{GRID}\n")
    return path


def test_all_ranks_are_verified_together(config: Path, trtkit: Callable[..., Ran]) -> None:
    report = trtkit("verify", config, "--layers", "--json").json()
    assert report["passed"]
    ranks = next(corner for corner in report["corners"] if corner["name"] == "4 ranks and one")
    assert 0 < ranks["relative_rms_error"] <= 1e-5
    layers = {layer["layer"]: layer["relative_rms_error"] for layer in report["layers"]}
    summed = {f"layers.{index}/{name}/all_reduce" for index in range(3) for name in ("attention/o", "mlp/down")}
    assert summed <= set(layers)
    assert max(layers.values()) <= 1e-5


def test_a_share_that_is_cut_wrongly_is_found_and_its_layer_named(
    config: Path, trtkit: Callable[..., Ran], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One rank's output projection in layer 1 has its inputs in the wrong order."""
    right = RankWeights.__getitem__

    def wrong(self: RankWeights, path: str) -> Weight:
        weight = right(self, path)
        if path != "layers.1.attention.o.weight":
            return weight
        return np.asarray(weight)[:, ::-1].copy()

    monkeypatch.setattr(RankWeights, "__getitem__", wrong)
    ran = trtkit("verify", config, "--json")
    assert ran.code == 3
    layers = ran.json()["layers"]
    first = next(layer["layer"] for layer in layers if layer["relative_rms_error"] > 1e-3)
    assert first == "layers.1/attention/o/all_reduce"


SEQUENCE = ("--set", "parallel={tensor: 4, sequence: true}")


def test_ranks_that_share_tokens_are_verified_together(config: Path, trtkit: Callable[..., Ran]) -> None:
    report = trtkit("verify", config, *SEQUENCE, "--layers", "--json").json()
    assert report["passed"]
    corners = {corner["name"]: corner["relative_rms_error"] for corner in report["corners"]}
    assert 0 < corners["4 ranks and one"] <= 1e-5
    assert corners["decoding and prompts in one call"] <= 1e-5
    layers = {layer["layer"]: layer["relative_rms_error"] for layer in report["layers"]}
    summed = {f"layers.{index}/{name}/reduce_scatter" for index in range(3) for name in ("attention/o", "mlp/down")}
    assert summed <= set(layers)
    assert max(layers.values()) <= 1e-5


def test_a_share_of_the_tokens_that_is_wrong_is_found_and_its_layer_named(
    config: Path, trtkit: Callable[..., Ran], monkeypatch: pytest.MonkeyPatch
) -> None:
    """In layer 1, ranks read all tokens in another order of ranks than they have them."""
    right = TokenShare.enter

    def wrong(share: TokenShare, x: Tensor) -> Tensor:
        every = right(share, x)
        if share.is_whole or x.graph.path() != "layers.1":
            return every
        by_rank = reorder(reshape(every, (4, -1, every.shape[2])), [3, 2, 1, 0], axis=0)
        return reshape(by_rank, (-1, 1, every.shape[2]))

    monkeypatch.setattr(TokenShare, "enter", wrong)
    ran = trtkit("verify", config, *SEQUENCE, "--json")
    assert ran.code == 3
    layers = ran.json()["layers"]
    first = next(layer["layer"] for layer in layers if layer["relative_rms_error"] > 1e-3)
    assert first == "layers.1/attention/o/reduce_scatter"


CONTEXT = ("--set", "parallel={tensor: 4, context: 4}")


@pytest.mark.parametrize("caches", [(), ("--set", "llm.kv=paged")], ids=["linear", "paged"])
def test_ranks_that_share_positions_are_verified_together(
    config: Path, trtkit: Callable[..., Ran], caches: tuple[str, ...]
) -> None:
    report = trtkit("verify", config, *CONTEXT, *caches, "--layers", "--json").json()
    assert report["passed"]
    corners = {corner["name"]: corner["relative_rms_error"] for corner in report["corners"]}
    assert 0 < corners["4 ranks and one"] <= 1e-5
    assert corners["decoding and prompts in one call"] <= 1e-5
    layers = {layer["layer"]: layer["relative_rms_error"] for layer in report["layers"]}
    assert {f"layers.{index}/attention/o/all_reduce" for index in range(3)} <= set(layers)
    assert max(layers.values()) <= 1e-5


def test_merging_without_the_largest_scores_is_found_and_its_layer_named(
    config: Path, trtkit: Callable[..., Ran], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Parts of attention count alike, whatever their ranks' largest scores."""
    right = attention.merged_attention

    def wrong(parts: Tensor, sinks: Tensor | None = None) -> Tensor:
        size = parts.shape[-1] - 2
        attended, largest, total = split(parts, -1, (size, 1, 1))
        return right(concat([attended, largest * 0.0, total], -1), sinks)

    monkeypatch.setattr(attention, "merged_attention", wrong)
    ran = trtkit("verify", config, *CONTEXT, "--json")
    assert ran.code == 3
    layers = ran.json()["layers"]
    first = next(layer["layer"] for layer in layers if layer["relative_rms_error"] > 1e-3)
    assert first == "layers.0/attention/o/all_reduce"


def test_ranks_that_cannot_share_the_model_are_refused(config: Path, trtkit: Callable[..., Ran]) -> None:
    ran = trtkit("verify", config, "--set", "parallel.tensor=3")
    assert ran.code == 2
    text = " ".join(ran.err.split())
    assert "parallel.tensor: 3: does not divide 8 query and 2 key/value heads" in text
    assert "use one of 1, 2, 4, 8" in text


def test_an_expert_group_that_does_not_divide_is_refused(config: Path, trtkit: Callable[..., Ran]) -> None:
    ran = trtkit("verify", config, "--set", "parallel.tensor=4", "--set", "parallel.expert=3")
    assert ran.code == 2
    assert "`expert`, 3, does not divide `tensor`, 4" in " ".join(ran.err.split())


def test_ranks_of_a_vision_model_are_refused(trtkit: Callable[..., Ran]) -> None:
    ran = trtkit("build", "efficientnet-lite0", "--set", "parallel.tensor=2", "-o", "out")
    assert ran.code == 2
    assert "parallel" in ran.err


def test_a_verified_bundle_has_a_request_that_its_ranks_are_asked(
    bundle_of: Callable[[str], Path], tmp_path: Path, trtkit: Callable[..., Ran]
) -> None:
    bundle = tmp_path / "bundle"
    shutil.copytree(bundle_of("tensor"), bundle)
    assert trtkit("verify", bundle, "--no-corners", "--no-layers").code == 0
    (known,) = read_all_known(open_bundle(bundle))
    assert known.tolerance == 0
    assert known.outputs
