"""A new kind of draft head is one folder, `tests/toy_drafts/bigram/`: it builds and guesses."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import torch
from safetensors.torch import save_file

import trtkit.drafts
from tests.support import tiny_llm
from trtkit import LLM, SamplingParams
from trtkit.builder.build import build_bundle
from trtkit.builder.speculators import folder_kind
from trtkit.bundle.bundle import open_bundle
from trtkit.config.schema import ModelConfig
from trtkit.errors import SourceError
from trtkit.jobs.runner import new_runner
from trtkit.models.speculators import kind_part, known_kinds
from trtkit.verification.jobs import VerifySettings as Checks
from trtkit.verification.verify import verify_bundle

if TYPE_CHECKING:
    from collections.abc import Iterator

VOCABULARY = len(tiny_llm.tokenizer())
SHIPPED = ("eagle3", "gemma4_assistant", "medusa", "mtp")
PARAMS = [
    SamplingParams(temperature=t, seed=seed, max_tokens=14, ignore_eos=True)
    for seed, t in enumerate((0.0, 0.8, 30.0, 0.0))
]


@pytest.fixture
def toys(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Have the folder of toys searched for kinds, next to trtkit's own."""
    folder = Path(__file__).parents[1] / "toy_drafts"
    monkeypatch.setattr(trtkit.drafts, "__path__", [*trtkit.drafts.__path__, str(folder)])
    yield
    for name in [name for name in sys.modules if name.startswith("trtkit.drafts.bigram")]:
        del sys.modules[name]


def save(folder: Path, table: torch.Tensor) -> Path:
    """Write a folder of a bigram head."""
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps({"model_type": "bigram", "vocab_size": len(table)}))
    save_file({"table.weight": table}, folder / "model.safetensors")
    return folder


def config_of(folder: Path, **llm: object) -> ModelConfig:
    tiny_llm.save(folder / "model")
    sizes = {"max_batch_size": 4, "max_sequence_length": 64, "max_prefill_length": 16}
    llm = {**sizes, "speculator": str(folder / "head"), **llm}
    return ModelConfig.model_validate({"source": {"hf": str(folder / "model")}, "precision": "fp32", "llm": llm})


def answers(bundle: Path, speculate: int) -> tuple[list[tuple[int, ...]], int, int]:
    """Return the tokens of requests that share batches, and how many were guessed and accepted."""
    with LLM(bundle, speculate=speculate) as llm:
        tokens = [output.outputs[0].token_ids for output in llm.generate(tiny_llm.PROMPTS, PARAMS)]
        return tokens, llm.statistics.drafted_tokens, llm.statistics.accepted_tokens


@pytest.mark.usefixtures("toys")
@pytest.mark.parametrize(("kv", "tree"), [("linear", None), ("paged", 6)])
def test_a_new_kind_is_one_folder(kv: str, tree: int | None, tmp_path: Path) -> None:
    """With a table of ones on the diagonal, its guess is the last token again."""
    assert known_kinds() == ("bigram", *SHIPPED)
    save(tmp_path / "head", torch.eye(VOCABULARY))
    assert folder_kind(tmp_path / "head") == "bigram"
    config = config_of(tmp_path, kv=kv, tree_tokens=tree)
    bundle = build_bundle(config, tmp_path / "bundle", new_runner(), use_cache=False).bundle
    assert bundle.manifest.decoder.speculator.model_type == "bigram"
    (plain, none, _), (guessed, drafted, accepted) = (answers(bundle.path, count) for count in (0, 3))
    assert guessed == plain
    assert none == 0 < accepted < drafted
    report = verify_bundle(bundle, Checks(corners=True), new_runner())
    assert report.passed
    (corner,) = [corner for corner in report.corners if corner.name == "guesses of the head"]
    assert corner.relative_rms_error < 1e-6


@pytest.mark.usefixtures("toys")
def test_wrong_numbers_of_a_new_kind_are_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save(tmp_path / "head", torch.randn(VOCABULARY, VOCABULARY))
    bundle = build_bundle(config_of(tmp_path), tmp_path / "bundle", new_runner(), use_cache=False).bundle
    network = kind_part("bigram", "network")
    looked_up = network.embedding
    monkeypatch.setattr(network, "embedding", lambda ids, table: looked_up(ids, table) * 1.5)
    report = verify_bundle(bundle, Checks(corners=True), new_runner())
    assert not report.passed
    assert [corner.name for corner in report.corners if not corner.passed] == ["guesses of the head"]


def test_without_the_folder_nothing_of_it_is_known(tmp_path: Path) -> None:
    assert known_kinds() == SHIPPED
    with pytest.raises(SourceError, match="not a head of a kind that is supported: the config names `bigram`") as error:
        folder_kind(save(tmp_path / "head", torch.eye(3)))
    assert error.value.fix == (
        "give a head of one of these kinds: EAGLE-3, `architectures` of LlamaForCausalLMEagle3, "
        "Eagle3LlamaForCausalLM, Eagle3Speculator, Eagle3DraftModel; Gemma 4's assistant, `model_type` of "
        "gemma4_assistant; Medusa, `medusa_num_heads`; MTP modules, in the model's own weights, `model_type` of "
        "deepseek_v3, exaone_moe, glm4_moe, glm4_moe_lite, mellum, mimo, mimo_v2_flash, qwen3_5_moe_text, "
        "qwen3_5_text, qwen3_next"
    )


@pytest.mark.parametrize("kind", ["bigram", "fit", "os", "medusa.spec", "__pycache__"])
def test_only_folders_of_kinds_are_imported_by_a_name(kind: str) -> None:
    before = set(sys.modules)
    with pytest.raises(SourceError, match=f"unknown kind of draft head `{kind}`") as error:
        kind_part(kind, "proposer")
    assert error.value.fix == "build again with one of these: eagle3, gemma4_assistant, medusa, mtp"
    assert set(sys.modules) == before


def test_a_bundle_of_an_unknown_kind_is_refused(tmp_path: Path) -> None:
    """A manifest names its kind, and nothing else is imported for it."""
    from tests.support.medusa import save_random

    save_random(tmp_path / "head", (48, VOCABULARY), heads=2)
    path = build_bundle(config_of(tmp_path), tmp_path / "bundle", new_runner(), use_cache=False).bundle.path
    manifest = path / "manifest.json"
    manifest.write_text(manifest.read_text().replace('"model_type": "medusa"', '"model_type": "os"'))
    assert open_bundle(path).manifest.decoder.speculator.model_type == "os"
    with pytest.raises(SourceError, match="unknown kind of draft head `os`"):
        LLM(path)
