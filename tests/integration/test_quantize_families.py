"""Every decoder family can be quantized, and its network then computes what transformers does."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

from tests.selection import slow_unless
from tests.support import recurrent_cases, tiny_llm
from tests.support.covering import CACHED, STEPPED, in_covering_set_of
from tests.support.decoder_cases import CASES
from tests.support.decoders import model_of, read_network
from trtkit.config.schema import ModelConfig
from trtkit.jobs.job import JobContext
from trtkit.llm.execution import Call, ReferenceDecoder, config_network
from trtkit.models.registry import decoder_spec
from trtkit.quantization.jobs import QuantizeRequest
from trtkit.quantization.llm.choice import linear_layers
from trtkit.quantization.llm.job import quantize_llm
from trtkit.quantized_matrix import QuantizedMatrix
from trtkit.reference import to_array
from trtkit.sources.decoder_source import open_hf_folder
from trtkit.sources.huggingface.model import causal_lm
from trtkit.verification.compare import compare
from trtkit.verification.decoder_reference import round_inputs

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.decoder_case import Case

IDS = np.random.default_rng(0).integers(6, 320, 32)
SIZES = {
    "hidden_size": 64,
    "word_embed_proj_dim": 64,
    "intermediate_size": 128,
    "ffn_dim": 128,
    "num_attention_heads": 4,
    "head_dim": 16,
    "n_embd": 64,
    "d_model": 64,
    "n_heads": 4,
    "attention_heads": 4,
    "n_head": 4,
    "query_pre_attn_scalar": 16,
    "q_lora_rank": 32,
    "v_head_dim": 16,
    "global_head_dim": 16,
    "hidden_size_per_layer_input": 32,
    "vocab_size_per_layer_input": 320,
    "vocab_size": 320,
}
DENSE = [case for case in CASES if not {"num_experts_per_tok", "top_k_experts"} & case.config.keys()]
RECURRENT = {family for _, family, _, _ in recurrent_cases.RECURRENT}
# Other caches are not quantized.
OTHER_CACHES = {"kv_lora_rank", "num_kv_shared_layers", "block_configs"}
PER_HEAD = [case for case in DENSE if not OTHER_CACHES & case.config.keys() and case.model_type not in RECURRENT]
# Smoothing reaches into norms and blocks, rounding by GPTQ into nothing but linear layers.
is_smoothed, is_rounded = in_covering_set_of(DENSE), in_covering_set_of(DENSE, STEPPED)
METHODS = slow_unless(
    lambda case, method: is_smoothed(case) if method == "int8_sq" else is_rounded(case),
    itertools.product(DENSE, ("int8_sq", "int4_gptq")),
)


def saved(case: Case, folder: Path) -> Path:
    """Write the case's model, in sizes that blocks of 32 divide and with plain rotations, and a tokenizer."""
    sizes = {key: SIZES.get(key, value) for key, value in case.config.items() if key != "rope_parameters"}
    if case.config.get("num_key_value_heads") == case.config.get("num_attention_heads", 0):
        sizes["num_key_value_heads"] = SIZES["num_attention_heads"]
    model_of(replace(case, config=sizes)).hf.save_pretrained(folder)
    tiny_llm.tokenizer().save_pretrained(folder)
    return folder


def config_of(source: Path, **quantize: Any) -> ModelConfig:
    """Return a config of the model, quantized on a text beside it where a method is given."""
    text = source.parent / "text.txt"
    text.write_text(tiny_llm.TEXT * 3)
    lengths = {"max_sequence_length": 48, "max_prefill_length": 32, "logits": "all"}
    asked = {"calibration": {"data": str(text), "samples": 2, "length": 32}, **quantize}
    fields = {"source": {"hf": str(source)}, "precision": "fp32", "llm": lengths}
    return ModelConfig.model_validate({**fields, "quantize": asked} if quantize else fields)


def quantized(source: Path, **asked: Any) -> Path:
    """Return the checkpoint that is made of a model, beside it."""
    made = source.parent / "made"
    made.mkdir()
    quantize_llm(QuantizeRequest(config_of(source, **asked), made), JobContext())
    return made


def network_logits(source: Path) -> torch.Tensor:
    decoder = ReferenceDecoder(read_network(config_network(config_of(source), "tensorrt_rtx")), 1)
    return decoder.forward(Call(0, IDS[None], np.array([0]), np.array([len(IDS)])))[0]


def transformers_logits(source: Path) -> torch.Tensor:
    """Return logits with the dequantized weights, inputs rounded as the checkpoint asks."""
    opened = open_hf_folder(source)
    model = causal_lm(opened)
    round_inputs(model, opened)
    with torch.inference_mode():
        return model(torch.from_numpy(IDS)[None]).logits[0]


@pytest.mark.parametrize(("case", "method"), METHODS, ids=str)
def test_a_quantized_family_computes_what_transformers_does(case: Case, method: str, tmp_path: Path) -> None:
    """A value that falls between two codes is rounded either way, and moves its token and those after it."""
    source = saved(case, tmp_path / "model")
    made = quantized(source, method=method)
    opened = open_hf_folder(made)
    for layer in linear_layers(decoder_spec(opened.config)):
        is_chosen = layer.name != "lm_head"
        assert isinstance(opened.checkpoint[f"{layer.module}.weight"], QuantizedMatrix) == is_chosen
    got, want = network_logits(made), transformers_logits(made)
    assert float(((got - want).norm(dim=1) / want.norm(dim=1)).median()) < 1e-5
    assert compare(to_array(got), to_array(want)).relative_rms_error < 0.05
    assert compare(to_array(got), to_array(transformers_logits(source))).relative_rms_error > 1e-4


@pytest.mark.parametrize("case", slow_unless(in_covering_set_of(PER_HEAD, CACHED), PER_HEAD), ids=str)
def test_a_family_with_quantized_caches_is_near_itself(case: Case, tmp_path: Path) -> None:
    source = saved(case, tmp_path / "model")
    made = quantized(source, method="none", kv_cache="int8")
    found = compare(to_array(network_logits(made)), to_array(transformers_logits(source)))
    assert 1e-4 < found.relative_rms_error < 0.15
