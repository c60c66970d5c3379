"""Stages in turn on one device: FlexGen's schedule gives the tokens that the whole model gives."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch
from transformers import AutoModelForCausalLM, OPTConfig, OPTForCausalLM

from tests.support import tiny_llm
from trtkit import LLM, SamplingParams
from trtkit.builder.build import build_bundle
from trtkit.bundle.bundle import open_bundle
from trtkit.config.schema import ModelConfig
from trtkit.errors import GenerationError, RequestError
from trtkit.jobs.runner import new_runner
from trtkit.llm.offload.decoder import OffloadedDecoder

if TYPE_CHECKING:
    from pathlib import Path

PLACES = ("device", "host", "disk")
PROMPTS = [
    [5, 9, 33, 7],
    [40, 41],
    [100, 3, 8, 8, 21, 64, 2],
    [12, 50],
    [77, 5, 90, 61, 8],
    [30, 31, 32],
    [4, 3],
    [9] * 9,
]
"""Two blocks of four slots, of different lengths."""
TOKENS = [9, 3, 9, 6, 1, 7, 2, 7]


def save(family: str, folder: Path) -> Path:
    """Write a tiny model of five layers."""
    if family == "llama":
        return tiny_llm.save(folder, num_hidden_layers=5)
    torch.manual_seed(1)
    sizes = {"hidden_size": 48, "ffn_dim": 80, "num_hidden_layers": 5, "num_attention_heads": 4}
    config = OPTConfig(**sizes, vocab_size=320, max_position_embeddings=128, word_embed_proj_dim=48, dropout=0.0)
    model = OPTForCausalLM(config)
    for weight in model.parameters():
        if weight.dim() > 1:
            torch.nn.init.normal_(weight, std=1.5 * weight.shape[-1] ** -0.5)
    model.save_pretrained(folder)
    return folder


def build(model: Path, folder: Path, **changes: object) -> Path:
    sizes = {"max_batch_size": 4, "max_sequence_length": 64, "max_prefill_length": 32}
    config = {"source": {"hf": str(model)}, "precision": "fp32", "llm": sizes, "parallel": {"pipeline": 3}, **changes}
    return build_bundle(ModelConfig.model_validate(config), folder, new_runner()).bundle.path


@pytest.fixture(scope="module", params=["llama", "opt"])
def family(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A model and its bundle of three stages."""
    folder = tmp_path_factory.mktemp(request.param)
    model = save(request.param, folder / "model")
    return model, build(model, folder / "bundle")


def transformers_tokens(model: Path) -> list[list[int]]:
    """Greedy continuations by transformers, each prompt on its own."""
    hf = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    hf.generation_config.eos_token_id = None
    answers = []
    for prompt, count in zip(PROMPTS, TOKENS, strict=True):
        ids = torch.tensor([prompt])
        output = hf.generate(ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=count)
        answers.append(output[0, len(prompt) :].tolist())
    return answers


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("micro_batch", [1, 3, 4])
def test_answers_are_those_of_transformers(family: tuple[Path, Path], place: str, micro_batch: int) -> None:
    model, bundle = family
    params = [SamplingParams(temperature=0, max_tokens=count, ignore_eos=True) for count in TOKENS]
    with LLM(bundle, runtime="reference", offload=place, micro_batch=micro_batch) as llm:
        answers = [list(output.outputs[0].token_ids) for output in llm.generate(PROMPTS, params)]
        decoder = llm.frontend.execution
        assert isinstance(decoder, OffloadedDecoder)
        counts = decoder.counts
    assert answers == transformers_tokens(model)
    assert counts.passes == 9 + 7  # of each block: one that reads all prompts, and one for each next token
    assert counts.loads == 3 * counts.passes + 1  # the first stage once more, ready for the next pass
    weights = [rank.weight_bytes for rank in open_bundle(bundle).manifest.stages[-1].ranks]
    assert counts.loaded_bytes == counts.passes * sum(weights) + weights[0]
    assert counts.most_resident_bytes == max(weights[0] + weights[1], weights[1] + weights[2], weights[2] + weights[0])
    assert counts.most_resident_bytes < sum(weights)
    assert bool(counts.fetched_bytes) is bool(counts.stored_bytes) is (place != "device")
