"""Unusual but legal settings of decoder families against transformers; unsupported ones are refused by name."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.decoder_case import LLAMA3_ROPE, YARN_ROPE
from tests.support.decoder_variants import COMMON, LINEAR_ROPE, TIED, UNTIED, error_of_logits, refusal

MIXED_ROPE = {
    "rope_type": "longrope",
    "short_factor": [1.0, 1.5, 2.0, 2.5],
    "long_factor": [1.0, 3.0, 6.0, 9.0],
    "original_max_position_embeddings": 48,
    "rope_theta": 100.0,
    "short_mscale": 1.2,
    "long_mscale": 1.4,
}
TYPES = [[["global"], 1], [["local"], 1]]
WINDOWS = {"sliding_window": 7, "layer_types": ["sliding_attention", "full_attention"]}
VARIANTS = [
    ("smollm3", {"use_sliding_window": False, **WINDOWS}),
    ("smollm3", {"use_sliding_window": True, "sliding_window": 7, "no_rope_layers": [1, 0, 1]}),
    ("bloom", {"layer_norm_epsilon": 0.1, "num_attention_heads": 3, "hidden_size": 45}),
    ("gpt2", {"n_inner": 31, "activation_function": "relu", "layer_norm_epsilon": 0.1}),
    ("gptj", {"n_head": 3, "rotary_dim": 4, "layer_norm_epsilon": 0.1}),
    ("codegen", {"n_head": 4, "rotary_dim": 6, "activation_function": "relu"}),
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
    ("glm4_moe", {**TIED, "n_group": 1, "topk_group": 1, "norm_topk_prob": False, "num_nextn_predict_layers": 2}),
    ("glm4_moe", {"use_qk_norm": False, "attention_bias": False, "rope_parameters": YARN_ROPE}),
    ("glm4_moe", {"first_k_dense_replace": 0, "n_group": 2, "num_experts_per_tok": 5, "hidden_act": "gelu"}),
    ("dots1", {**TIED, "attention_bias": True, "n_shared_experts": 2, "norm_topk_prob": False}),
    ("dots1", {"layer_types": ["sliding_attention", "full_attention"], "first_k_dense_replace": 1}),
    ("dots1", {"sliding_window": None, "n_group": 2, "topk_group": 1, "rope_parameters": LLAMA3_ROPE}),
    ("minimax_m2", {**TIED, "num_experts_per_tok": 5, "rotary_dim": 8}),
    ("minimax_m2", {"num_local_experts": 1, "num_experts_per_tok": 1, "rope_parameters": YARN_ROPE}),
    ("minimax_m2", {"rotary_dim": None, "rope_parameters": {"rope_theta": 50.0, "partial_rotary_factor": 0.75}}),
    ("granitemoe", {**TIED, "attention_bias": False, "num_experts_per_tok": 1, "rope_parameters": YARN_ROPE}),
    ("granitemoe", {"num_local_experts": 2, "num_key_value_heads": None, "hidden_act": "gelu", "rms_norm_eps": 0.1}),
    ("granitemoeshared", {**TIED, "shared_intermediate_size": 0, "num_experts_per_tok": 3}),
    ("granitemoeshared", {"shared_intermediate_size": 31, "intermediate_size": 33}),
    ("phimoe", {**TIED, "lm_head_bias": False, "attention_bias": True, "router_jitter_noise": 0.5}),
    ("phimoe", {"sliding_window": 7, "num_local_experts": 2, "rms_norm_eps": 0.1}),
    ("phimoe", {"rope_parameters": MIXED_ROPE}),
    ("hunyuan_v1_moe", {**TIED, "attention_bias": True, "num_experts_per_tok": 2, "rope_parameters": YARN_ROPE}),
    (
        "hunyuan_v1_moe",
        {"num_experts_per_tok": [3, 2, 4], "num_experts": 4, "intermediate_size": 31, "rms_norm_eps": 0.1},
    ),
    ("hunyuan_v1_moe", {"num_experts": 1, "num_experts_per_tok": 1, "num_key_value_heads": None, "hidden_act": "gelu"}),
    ("llama4", {**TIED, "attention_bias": True, "use_qk_norm": False, "attn_temperature_tuning": False}),
    ("llama4", {"no_rope_layers": [1, 1, 0, 1], "layer_types": None, "num_experts_per_tok": 1, "moe_layers": [0, 3]}),
    ("llama4", {"attention_chunk_size": 1, "num_local_experts": 2, "interleave_moe_layer_step": 1, "floor_scale": 3}),
    (
        "llama4",
        {"attention_chunk_size": 40, "no_rope_layer_interval": 2, "rope_parameters": YARN_ROPE, **TIED},
    ),
    ("gpt_oss", {**TIED, "attention_bias": False, "swiglu_alpha": 0.7, "rope_parameters": LLAMA3_ROPE}),
    ("gpt_oss", {"layer_types": ["full_attention", "sliding_attention"], "num_experts_per_tok": 5}),
    ("gpt_oss", {"sliding_window": 1, "num_local_experts": 1, "num_experts_per_tok": 1, "num_key_value_heads": 6}),
    ("gpt_oss", {"rope_parameters": YARN_ROPE, "rms_norm_eps": 0.1, "intermediate_size": 31, "swiglu_limit": 0.0}),
    ("ernie4_5_moe", {"use_bias": False, "moe_num_shared_experts": 1, "rope_parameters": YARN_ROPE}),
]
MSCALES = {"short_mscale": 1.2, "long_mscale": 1.4}
REFUSED = [
    ("gptj", {"rotary_dim": 10}, "`rotary_dim` is 10; expected an even number up to 8"),
    ("codegen", {"n_head": 6}, "`n_head` is 6; CodeGen needs a multiple of 4"),
    ("mpt", {"logit_scale": 0.5}, "`logit_scale` is `0.5`, only `1.0` is supported"),
    ("mpt", {"expansion_ratio": 2}, "`expansion_ratio` is `2`, only `4` is supported"),
    ("glm4_moe", {"n_group": 4}, "2 of 4 groups cannot be chosen of 6 experts"),
    ("glm4_moe", {"topk_group": 4}, "4 of 3 groups cannot be chosen of 6 experts"),
    ("glm4_moe", {"n_group": 6}, "6 groups of 6 experts have fewer than two each"),
    ("glm4_moe", {"num_experts_per_tok": 5}, "5 experts cannot be chosen of 4"),
    ("dots1", {"scoring_func": "softmax"}, "`scoring_func` is `softmax`, only `sigmoid` or `noaux_tc` is supported"),
    ("dots1", {"moe_layer_freq": 2}, "`moe_layer_freq` is `2`, only `1` is supported"),
    ("minimax_m2", {"use_routing_bias": False}, "`use_routing_bias` is `False`, only `True` is supported"),
    ("minimax_m2", {"attn_type_list": [1, 0]}, "`attn_type_list` is `[1, 0]`, only `[1, 1]` is supported"),
    ("granitemoe", {"num_experts_per_tok": 6}, "6 experts cannot be chosen of 5"),
    ("hunyuan_v1_moe", {"moe_intermediate_size": [76, 80]}, "is `[76, 80]`, only `76` or `[76, 76]` is supported"),
    ("hunyuan_v1_moe", {"num_shared_expert": 2}, "`num_shared_expert` is `2`, only `1` or `[1, 1]` is supported"),
    ("llama4", {"attention_chunk_size": None}, "`attention_chunk_size` is `None`; expected at least 1"),
    ("llama4", {"layer_types": ["sliding_attention"] * 4}, "`layer_types` is `sliding_attention`, which is not known"),
    ("gpt_oss", {"hidden_act": "gelu"}, "`hidden_act` is `gelu`, only `silu` is supported"),
    ("gpt_oss", {"experts_per_token": 3}, "`experts_per_token` is `3`, only `2` is supported"),
    ("phimoe", {"num_experts_per_tok": 1}, "`num_experts_per_tok` is `1`, only `2` is supported"),
    ("phimoe", {"rope_parameters": {**YARN_ROPE, **MSCALES}}, "`rope_type` is `yarn`, which is not known"),
    ("mpt", {"attn_config": {"qk_ln": True}}, "`qk_ln` is `True`, only `False` is supported"),
]


@pytest.mark.parametrize(("name", "changes"), [*VARIANTS, *COMMON], ids=str)
def test_unusual_settings_give_the_logits_of_transformers(name: str, changes: dict[str, Any]) -> None:
    assert error_of_logits(name, changes) <= 1e-5


@pytest.mark.parametrize(("name", "changes", "error"), REFUSED, ids=str)
def test_settings_that_are_not_supported_are_refused_by_name(name: str, changes: dict[str, Any], error: str) -> None:
    assert error in refusal(name, changes)
