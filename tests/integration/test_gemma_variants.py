"""Unusual but legal settings of Gemma 3n and 4 against transformers, and refusals of these families."""

from __future__ import annotations

from typing import Any

import pytest
from transformers import AutoConfig

from tests.support.decoder_case import LLAMA3_ROPE, YARN_ROPE
from tests.support.decoder_cases import CASES
from tests.support.decoder_variants import TIED, UNTIED, error_of_logits
from tests.support.decoders import graph_of, model_of
from trtkit.dtypes import FP16
from trtkit.errors import ConfigError, NetworkError, TrtkitError
from trtkit.models.parallel import Grid, check_grid
from trtkit.models.registry import decoder_spec
from trtkit.network.decoder_options import DecoderOptions

SLIDING, FULL = ["sliding_attention"], ["full_attention"]
LINEAR_ROPE = {"rope_type": "linear", "rope_theta": 50.0, "factor": 3.0}
ROPES = {"full_attention": YARN_ROPE, "sliding_attention": LINEAR_ROPE}
PROPORTIONAL = {"rope_type": "proportional", "rope_theta": 9.0, "partial_rotary_factor": 0.7, "factor": 1.5}
SHARED = {"num_kv_shared_layers": 1, "hidden_size_per_layer_input": 3, "vocab_size_per_layer_input": 67}
VARIANTS = [
    ("gemma4", {**UNTIED, "attention_bias": True, "layer_types": [*FULL, *SLIDING] * 4, "num_kv_shared_layers": 5}),
    ("gemma4", {"num_kv_shared_layers": 0, "global_head_dim": 8, "rope_parameters": ROPES, "rms_norm_eps": 0.1}),
    ("gemma4", {"layer_types": FULL * 8, "head_dim": 6, "rope_parameters": {"full_attention": PROPORTIONAL}}),
    ("gemma4", {"hidden_activation": "silu", "num_key_value_heads": 6, "sliding_window": 1}),
    ("gemma4-no-values", {**UNTIED, "num_global_key_value_heads": None, "num_key_value_heads": 6}),
    ("gemma4-no-values", {"layer_types": [*SLIDING, *FULL, *FULL], **SHARED}),
    ("gemma4-moe", {**UNTIED, "num_experts": 1, "top_k_experts": 1, "rms_norm_eps": 0.1}),
    (
        "gemma4-moe",
        {"top_k_experts": 5, "use_double_wide_mlp": True, **SHARED, "layer_types": [*SLIDING, *FULL, *FULL]},
    ),
    ("gemma4-moe", {"moe_intermediate_size": 5, "hidden_activation": "silu", "attention_k_eq_v": True}),
    ("gemma3n", {**UNTIED, "attention_bias": True, "altup_num_inputs": 2, "altup_active_idx": 1}),
    ("gemma3n", {"num_kv_shared_layers": 0, "altup_correct_scale": False, "final_logit_softcapping": 2.0}),
    ("gemma3n", {"layer_types": [*FULL, *SLIDING] * 3 + FULL, "num_kv_shared_layers": 4, "altup_num_inputs": 3}),
    ("gemma3n", {**TIED, "intermediate_size": 76, "activation_sparsity_pattern": None, "rope_parameters": ROPES}),
    (
        "gemma3n",
        {"num_key_value_heads": 6, "head_dim": 10, "rope_scaling": LLAMA3_ROPE},
    ),
]
REFUSED = [
    ("gemma3_text", {"attn_logit_softcapping": 5.0}, "`attn_logit_softcapping` is `5.0`"),
    ("gemma4_text", {"use_bidirectional_attention": "all"}, "is `all`, only `vision` is supported"),
    ("gemma4_text", {"vocab_size_per_layer_input": 5}, "is 5, less than the vocabulary of 262144"),
    ("gemma4_text", {"enable_moe_block": True}, "`enable_moe_block` is set, and `num_experts` is missing"),
    ("gemma4_text", {"num_kv_shared_layers": 29}, "`num_kv_shared_layers` leaves 1 layers with caches"),
    ("gemma4_text", {"per_layer_config": {"1": {"sliding_window": 3}}}, "of layer 1 has `sliding_window`"),
    ("gemma4_text", {"per_layer_config": {"1": {"head_dim": 8}}}, "layers of type `sliding_attention` several sizes"),
    ("gemma3n_text", {"intermediate_size": [5]}, "`intermediate_size` has 1 entries for 35 layers"),
]
BY_NAME = {case.name: case for case in CASES}


@pytest.mark.parametrize(("name", "changes"), VARIANTS, ids=str)
def test_unusual_settings_give_the_logits_of_transformers(name: str, changes: dict[str, Any]) -> None:
    assert error_of_logits(name, changes) <= 1e-5


@pytest.mark.parametrize(("model_type", "fields", "error"), REFUSED, ids=str)
def test_settings_that_are_not_supported_are_refused_by_name(
    model_type: str, fields: dict[str, Any], error: str
) -> None:
    stated = {**AutoConfig.for_model(model_type).to_dict(), "model_type": model_type}
    with pytest.raises(TrtkitError) as caught:
        decoder_spec({**stated, **fields})
    assert error in str(caught.value)


def test_layers_that_read_others_caches_have_none() -> None:
    """Layers 6 and 7 read those of 4 and 5, the last that slides and the last that does not."""
    model = model_of(BY_NAME["gemma4"])
    caches = [spec for spec in graph_of(model, DecoderOptions(FP16, 32)).inputs if spec.feeder == "cache"]
    assert [spec.name for spec in caches] == [f"past_{name}_{index}" for index in range(6) for name in ("key", "value")]
    assert [each.cache_of for each in model.spec.attentions] == [None] * 6 + [4, 5]
    assert model.spec.cached_elements == 5 * 2 * 2 * 8 + 2 * 2 * 12


def test_pipelines_and_embeddings_as_input_are_refused() -> None:
    model = model_of(BY_NAME["gemma4"])
    with pytest.raises(ConfigError, match="read vectors of the first stage, and caches of other layers"):
        check_grid(model.spec, Grid(pipeline=2), "config.json")
    with pytest.raises(NetworkError, match="embeddings as input do not say which tokens they are"):
        graph_of(model, DecoderOptions(FP16, 32, has_embeds_input=True))
