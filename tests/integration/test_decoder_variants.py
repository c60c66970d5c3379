"""Legal but unusual settings of families against transformers, and those that are refused by name."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from tests.decoder_cases import CASES, LLAMA3_ROPE, YARN_ROPE, Case
from tests.decoders import executor_of, model_of, relative_rms
from trtkit.dtypes import FP32
from trtkit.errors import SourceError

IDS = torch.randint(3, 67, (2, 21), generator=torch.Generator().manual_seed(1))
BY_NAME = {case.name: case for case in CASES}
TIED, UNTIED = {"tie_word_embeddings": True}, {"tie_word_embeddings": False}
LINEAR_ROPE = {"rope_type": "linear", "rope_theta": 50.0, "factor": 3.0}
TYPES = [[["global"], 1], [["local"], 1]]
VARIANTS = [
    ("gptj", {**TIED, "n_inner": 76, "activation_function": "relu", "rotary_dim": 8}),
    ("codegen", {**TIED, "n_head": 8, "n_inner": 76, "rotary_dim": 4}),
    ("gpt_neo", {**UNTIED, "intermediate_size": 76, "window_size": 1, "attention_types": TYPES}),
    ("nemotron", {**TIED, "attention_bias": True, "mlp_bias": True, "norm_eps": 0.1, "rope_parameters": LINEAR_ROPE}),
    ("nemotron", {"rope_parameters": {**YARN_ROPE, "partial_rotary_factor": 0.5}}),
    ("hunyuan_v1_dense", {**TIED, "attention_bias": True, "rms_norm_eps": 0.1, "rope_parameters": YARN_ROPE}),
    ("hunyuan_v1_dense", {"rope_parameters": {"rope_type": "dynamic", "rope_theta": 10.0, "factor": 2.0}}),
    ("apertus", {**TIED, "attention_bias": True, "hidden_act": "silu", "rope_parameters": YARN_ROPE}),
    ("jais2", {**TIED, "attention_bias": False, "mlp_bias": True, "rope_parameters": LLAMA3_ROPE}),
    ("nanochat", {**TIED, "attention_bias": True, "final_logit_softcapping": None, "rope_parameters": YARN_ROPE}),
    ("xglm", {**UNTIED, "scale_embedding": False, "pad_token_id": None}),
    ("xglm", {"d_model": 45, "attention_heads": 5, "pad_token_id": 1}),
    ("olmoe", {**TIED, "attention_bias": True, "norm_topk_prob": False, "num_key_value_heads": None}),
    ("olmoe", {"clip_qkv": 0.5}),
    ("mpt", {"attn_config": {"clip_qkv": 0.5}}),
    ("mpt", {**UNTIED, "n_heads": 8, "attn_config": None, "layer_norm_epsilon": 0.1}),
    ("ernie4_5_moe", {**UNTIED, "moe_num_shared_experts": 0, "moe_layer_start_index": 0, "moe_layer_interval": 2}),
    ("ernie4_5_moe", {"use_bias": False, "moe_num_shared_experts": 1, "rope_parameters": YARN_ROPE}),
]
REFUSED = [
    ("gptj", {"rotary_dim": 10}, "`rotary_dim` is 10; expected an even number up to 8"),
    ("codegen", {"n_head": 6}, "`n_head` is 6; CodeGen needs a multiple of 4"),
    ("mpt", {"logit_scale": 0.5}, "`logit_scale` is `0.5`, only `1.0` is supported"),
    ("mpt", {"expansion_ratio": 2}, "`expansion_ratio` is `2`, only `4` is supported"),
    ("mpt", {"attn_config": {"qk_ln": True}}, "`qk_ln` is `True`, only `False` is supported"),
]


@pytest.mark.parametrize(("name", "changes"), VARIANTS, ids=str)
def test_unusual_settings_give_the_logits_of_transformers(name: str, changes: dict[str, Any]) -> None:
    model = variant(name, changes)
    runner = executor_of(model, FP32)
    runner.reset(2)
    assert relative_rms(runner.step(IDS)["logits"], model_of(model).logits(IDS)) <= 1e-5


@pytest.mark.parametrize(("name", "changes", "error"), REFUSED, ids=str)
def test_settings_that_are_not_supported_are_refused_by_name(name: str, changes: dict[str, Any], error: str) -> None:
    with pytest.raises(SourceError) as caught:
        _ = model_of(variant(name, changes)).spec
    assert error in str(caught.value)


def variant(name: str, changes: dict[str, Any]) -> Case:
    """Return a case with other settings."""
    case = BY_NAME[name]
    return replace(case, name=f"{name} {changes}", config={**case.config, **changes})
