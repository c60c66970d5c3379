"""Ranks of quantized models give what one rank gives: checkpoints of every tool, every method, caches in eight bits."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from transformers import GPT2Config

from tests.support import quantized_checkpoints, tiny_llm, tiny_vlm
from tests.support.decoders import relative_rms, rtx
from trtkit.builder.decoders import open_decoder
from trtkit.config.load import load_config
from trtkit.config.schema import ModelConfig
from trtkit.errors import ConfigError
from trtkit.jobs.job import JobContext
from trtkit.llm.execution import Call
from trtkit.quantization.jobs import QuantizeRequest
from trtkit.quantization.llm.job import quantize_llm
from trtkit.quantization_methods import METHODS
from trtkit.resolve import resolve
from trtkit.verification.ranks import reference_decoder, single

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    import torch

    from tests.conftest import Ran
    from trtkit.builder.decoders import OpenedDecoder

IDS = np.random.default_rng(0).integers(6, 70, (2, 13))
LENGTHS = {"max_sequence_length": 32, "max_prefill_length": 16, "max_batch_size": 2, "logits": "all"}
# Each rank rounds its share of a token by the largest value there, one rank by the largest of all.
BY_TOKEN = 0.1


def opened(folder: Path, parallel: dict[str, Any], made: Path | None = None) -> OpenedDecoder:
    fields = {"source": {"hf": str(folder)}, "precision": "fp32", "llm": LENGTHS, "parallel": parallel}
    return open_decoder(resolve(ModelConfig.model_validate(fields)), made)


def logits(decoder: OpenedDecoder) -> torch.Tensor:
    """Return logits of a prefill, then of one more token of each of two slots."""
    execution = reference_decoder(rtx(), decoder, 2)
    starts = np.zeros(2, np.int64)
    execution.forward(Call(0, IDS, starts, np.array([13, 9])))
    return execution.forward(Call(0, IDS[:, :1], np.array([13, 9]), np.ones(2, np.int64)))


def error(decoder: OpenedDecoder) -> float:
    """Return the error of all ranks' logits against those of one rank."""
    return relative_rms(logits(decoder), logits(single(decoder)))


@pytest.fixture
def wide(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let blocks of 32 divide a half of every layer's inputs."""
    monkeypatch.setattr(quantized_checkpoints, "SIZES", {**quantized_checkpoints.SIZES, "intermediate_size": 128})


@pytest.mark.usefixtures("wide")
@pytest.mark.parametrize("name", [name for name in quantized_checkpoints.FORMATS if name != "gptq-act-order"])
def test_ranks_of_checkpoints_that_others_quantized_give_what_one_gives(name: str, tmp_path: Path) -> None:
    folder = quantized_checkpoints.save_llama(tmp_path, name)
    assert error(opened(folder, {"tensor": 2})) <= (BY_TOKEN if name.endswith("by-token") else 1e-5)


@pytest.mark.parametrize("name", ["awq", "int8-static", "fp8-blocks"])
def test_ranks_of_quantized_mixtures_give_what_one_gives(name: str, tmp_path: Path) -> None:
    assert error(opened(quantized_checkpoints.save_mixture(tmp_path, name), {"expert": 5})) <= 1e-5


def test_a_quantized_gpt2_is_shared_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """transformers stores its matrices [in, out], quantized ones are [out, in]."""
    wider = lambda **sizes: GPT2Config(**{**sizes, "n_inner": 128})  # noqa: E731
    monkeypatch.setattr(quantized_checkpoints, "GPT2Config", wider)
    assert error(opened(quantized_checkpoints.save_gpt2(tmp_path, "awq"), {"tensor": 2})) <= 1e-5


@pytest.mark.usefixtures("wide")
def test_columns_in_the_order_of_activations_are_refused(tmp_path: Path) -> None:
    decoder = opened(quantized_checkpoints.save_llama(tmp_path, "gptq-act-order"), {"tensor": 2})
    with pytest.raises(ConfigError, match=r"splits `layers.0.attention.o.weight`"):
        logits(decoder)


def test_a_block_that_ranks_would_split_is_refused(tmp_path: Path) -> None:
    """96 inputs of `down` in blocks of 32: a half of them ends within a block."""
    decoder = opened(quantized_checkpoints.save_llama(tmp_path, "awq"), {"tensor": 2})
    with pytest.raises(ConfigError) as refused:
        logits(decoder)
    assert refused.value.what == "`parallel.tensor` splits `layers.0.mlp.down.weight`"
    assert refused.value.problems[0].what == "inputs 0 to 47 of 96 split a block of 32"


@pytest.fixture(scope="module")
def of_blocks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_llm.save(tmp_path_factory.mktemp("blocks") / "model", **tiny_llm.OF_BLOCKS)


SEQUENCE = {"tensor": 2, "sequence": True}
# Of ranks that share tokens, a method that quantizes weights, one that quantizes inputs too, and one of caches.
GRIDS = [(method, {"tensor": 2, "pipeline": 2}) for method in (*METHODS, "kv_cache")]
GRIDS += [(method, SEQUENCE) for method in ("int4_awq", "mxfp8", "kv_cache")]


@pytest.mark.parametrize(("method", "parallel"), GRIDS, ids=str)
def test_ranks_of_every_method_give_what_one_gives(
    method: str, parallel: dict[str, Any], of_blocks: Path, tmp_path: Path
) -> None:
    text, made = tmp_path / "text.txt", tmp_path / "made"
    text.write_text(tiny_llm.TEXT * 3)
    made.mkdir()
    block = {"block": 32} if METHODS.get(method) and METHODS[method].format == "int4" else {}
    asked: dict[str, Any] = {"kv_cache": "fp8"} if method == "kv_cache" else {"method": method, **block}
    calibration = {"data": str(text), "samples": 2, "length": 32}
    config = ModelConfig.model_validate(
        {"source": {"hf": str(of_blocks)}, "precision": "fp32", "quantize": {**asked, "calibration": calibration}}
    )
    quantize_llm(QuantizeRequest(config, made), JobContext())
    assert error(opened(of_blocks, parallel, made)) <= 1e-5


def test_the_decoder_of_a_vision_language_model_is_shared(tmp_path: Path, trtkit: Callable[..., Ran]) -> None:
    """The engines take vectors, so its embeddings are stored outside them; every rank applies M-RoPE."""
    vlm = tiny_vlm.VLMS["qwen2-vl"]
    limits = "{max_batch_size: 2, max_sequence_length: 160, max_prefill_length: 96}"
    path = tmp_path / "m.yaml"
    path.write_text(
        f"source: {{hf: {tiny_vlm.folder_of(vlm)}}}\nllm: {limits}\nvision: {{max_images: 2}}\nprecision: fp32\n"
        "parallel: {tensor: 2}\n"
    )
    config = load_config(str(path))
    assert resolve(config).takes_images
    report = trtkit("verify", path, "--json").json()
    assert report["passed"]
    assert report["outputs"]["logits"]["relative_rms_error"] <= 1e-4


def test_the_config_of_one_rank_is_the_same_but_for_the_grid(of_blocks: Path) -> None:
    decoder = opened(of_blocks, {"tensor": 2})
    alone = single(replace(decoder, rank=1))
    assert alone.rank == 0
    assert alone.config.parallel is None
    assert alone.rank_spec == alone.spec == decoder.spec
