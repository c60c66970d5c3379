"""What presets decide: within a model's limits, and never what its config states."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from tests.support import tiny_llm
from tests.support.decoder_case import Case
from tests.support.decoders import model_of
from trtkit.builder.presets import PRESETS, with_preset
from trtkit.bundle.bundle import open_bundle
from trtkit.config.load import find_model_config
from trtkit.errors import ConfigError
from trtkit.jobs.runner import inline_jobs

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.conftest import Ran


@pytest.fixture
def llama(workspace: Path) -> Path:
    tiny_llm.save(workspace / "tiny")
    return workspace / "tiny"


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_fits_the_model_and_builds(
    llama: Path, name: str, workspace: Path, trtkit: Callable[..., Ran]
) -> None:
    with inline_jobs():
        ran = trtkit("build", "./tiny", "--preset", name, "--set", "llm.max_batch_size=2")
    assert ran.code == 0, ran.err
    text = " ".join(ran.out.split())
    assert f"preset {name}: decided when the engine is built" in text
    assert "llm.max_batch_size 2 config" in text
    limit = json.loads((llama / "config.json").read_text())["max_position_embeddings"]
    assert f"llm.max_sequence_length {limit} model" in text
    llm = open_bundle("bundles/tiny").manifest.config.llm
    assert llm is not None
    assert llm.lora is not None


def test_what_the_config_states_stays(llama: Path) -> None:
    stated = ("precision=fp32", "llm.kv=paged", "llm.max_sequence_length=64", "llm.max_prefill_length=32")
    chosen = with_preset(find_model_config("./tiny", stated), "chat")
    llm = chosen.config.llm
    assert llm is not None
    assert (chosen.config.precision, llm.kv, llm.kv_window, llm.max_sequence_length) == ("fp32", "paged", None, 64)
    assert (llm.logits, llm.max_prefill_length) == ("all", 32)
    origins = {row.key: row.origin for row in chosen.decisions}
    assert origins["llm.kv"] == origins["precision"] == "config"
    assert origins["llm.logits"] == "preset"


def test_the_precision_is_the_weights_own(llama: Path) -> None:
    fields = json.loads((llama / "config.json").read_text())
    for stated, precision in (("bfloat16", "bf16"), ("float16", "fp16"), ("float32", "fp32")):
        (llama / "config.json").write_text(json.dumps({**fields, "dtype": stated}))
        assert with_preset(find_model_config("./tiny"), "chat").config.precision == precision


def test_a_model_without_attention_has_no_pages(workspace: Path) -> None:
    sizes = {"hidden_size": 32, "state_size": 16, "num_heads": 4, "head_dim": 16, "n_groups": 1, "expand": 2}
    case = Case("mamba", "mamba2", {**sizes, "num_hidden_layers": 2, "vocab_size": 64, "chunk_size": 16})
    model_of(case).hf.save_pretrained(workspace / "mamba")
    chosen = with_preset(find_model_config("./mamba"), "throughput")
    assert ("llm.kv", "the model has no attention, so no KV caches") in chosen.left_out
    llm = chosen.config.llm
    assert llm is not None
    assert llm.kv == "linear"
    assert llm.max_prefill_length <= 64  # the most that recurrent layers take at once


def test_other_models_have_no_presets(trtkit: Callable[..., Ran], refuses: Callable[..., str]) -> None:
    assert refuses("build", "mobilenet-v2", "--preset", "chat", code=2).startswith("presets are for language models")
    with pytest.raises(ConfigError, match="`fast` is not a preset"):
        with_preset(find_model_config("llama"), "fast")  # type: ignore[arg-type]
