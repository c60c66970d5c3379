"""Unusual but legal settings of derived families and of latent attention, against transformers."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.decoder_case import LATENT_YARN, LLAMA3_ROPE, LONG_ROPE, YARN_ROPE
from tests.support.decoder_variants import TIED, UNTIED, error_of_logits, refusal

LINEAR_ROPE = {"rope_type": "linear", "rope_theta": 50.0, "factor": 3.0}
DYNAMIC_ROPE = {"rope_type": "dynamic", "rope_theta": 10.0, "factor": 2.0}
LATENT_LONG_ROPE = {key: value for key, value in LONG_ROPE.items() if key != "partial_rotary_factor"}
FULL = ["full_attention"]
SLIDING = ["sliding_attention"]
GROWTH = {"llama_4_scaling_beta": 0.3, "original_max_position_embeddings": 7}
NONE = {"no_op": True}


def pruned(*blocks: tuple[dict[str, Any], dict[str, Any]]) -> dict[str, Any]:
    """Return the fields of a model of these layers, of attention and MLP."""
    entries = [{"attention": attention, "ffn": ffn} for attention, ffn in blocks]
    return {"num_hidden_layers": len(blocks), "block_configs": entries}


VARIANTS = [
    ("minicpm3", {**UNTIED, "attention_bias": True, "mlp_bias": True, "q_lora_rank": None, "scale_depth": None}),
    ("minicpm3", {"v_head_dim": None, "dim_model_base": None, "hidden_size": 48, "rope_parameters": LATENT_YARN}),
    ("minicpm3", {"kv_lora_rank": 3, "v_head_dim": 1, "qk_nope_head_dim": 1, "rope_parameters": LATENT_LONG_ROPE}),
    ("deepseek_v2", {**TIED, "attention_bias": True, "mlp_bias": True, "topk_method": "greedy", "v_head_dim": 3}),
    ("deepseek_v2", {"n_group": 1, "topk_group": 1, "hidden_act": "gelu", "rope_parameters": LATENT_LONG_ROPE}),
    ("deepseek_v2-lite", {"first_k_dense_replace": 2, "rms_norm_eps": 0.1, "rope_parameters": LLAMA3_ROPE}),
    ("deepseek_v3", {**TIED, "rope_interleave": False, "attention_bias": True, "norm_topk_prob": False}),
    ("deepseek_v3", {"q_lora_rank": None, "n_group": 1, "topk_group": 1, "num_nextn_predict_layers": 0}),
    ("deepseek_v3", {"n_group": 2, "first_k_dense_replace": 3, "qk_rope_head_dim": 8, "rope_parameters": LINEAR_ROPE}),
    ("glm4_moe_lite", {**TIED, "attention_bias": True, "mlp_layer_types": ["sparse", "dense"], "n_shared_experts": 2}),
    ("glm4_moe_lite", {"rope_interleave": False, "norm_topk_prob": False, "rope_parameters": LATENT_YARN}),
    ("glm4_moe_lite", {"q_lora_rank": None, "routed_scaling_factor": 0.3, "hidden_act": "gelu", "v_head_dim": 17}),
    ("youtu", {**UNTIED, "attention_bias": True, "q_lora_rank": None, "rope_parameters": LINEAR_ROPE}),
    ("youtu", {"rope_interleave": False, "kv_lora_rank": 5, "v_head_dim": 3, "hidden_act": "gelu"}),
    ("youtu", {"qk_nope_head_dim": 3, "qk_rope_head_dim": 4, "rms_norm_eps": 0.1, "rope_parameters": DYNAMIC_ROPE}),
    ("afmoe", {**TIED, "attention_bias": True, "mup_enabled": False, "num_dense_layers": 3, "num_shared_experts": 1}),
    ("afmoe", {"layer_types": [*FULL, *SLIDING] * 2, "num_dense_layers": 0, "rope_parameters": YARN_ROPE}),
    ("afmoe", {"sliding_window": 1, "num_key_value_heads": None, "head_dim": 10, "num_experts_per_tok": 5}),
    ("afmoe", {"hidden_act": "gelu", "rms_norm_eps": 0.1, "num_experts": 1, "num_experts_per_tok": 1}),
    ("laguna", {**TIED, "attention_bias": True, "gating": "per-element", "moe_router_logit_softcapping": 0.0}),
    ("laguna", {"num_attention_heads_per_layer": None, "layer_types": None, "mlp_layer_types": ["sparse"] * 3}),
    ("laguna", {"num_attention_heads_per_layer": [2, 4, 8], "gating": "per-head", "head_dim": 12, "sliding_window": 1}),
    (
        "laguna",
        {
            "rope_parameters": {
                "full_attention": {**YARN_ROPE, "partial_rotary_factor": 0.5},
                "sliding_attention": {"rope_type": "default", "rope_theta": 50.0},
            },
            **{"num_experts_per_tok": 5, "shared_expert_intermediate_size": 31, "hidden_act": "gelu"},
        },
    ),
    ("axk1", {**TIED, "attention_bias": True, "norm_topk_prob": False, "n_shared_experts": 2, "hidden_act": "gelu"}),
    ("axk1", {"rope_interleave": False, "mlp_layer_types": ["sparse", "dense", "sparse"], "rms_norm_eps": 0.1}),
    ("axk1", {"n_group": 1, "topk_group": 1, "v_head_dim": 3, "rope_parameters": LINEAR_ROPE}),
    ("mimo_v2_flash", {**TIED, "attention_bias": True, "attention_value_scale": None, "v_head_dim": 8}),
    ("mimo_v2_flash", {"v_head_dim": 1, "layer_types": [*SLIDING, *FULL, *SLIDING], "sliding_window_size": 2}),
    ("mimo_v2_flash", {"mlp_layer_types": ["sparse", "dense", "sparse"], "num_key_value_heads": 3, "head_dim": 16}),
    ("mimo_v2_flash", {"n_group": 1, "topk_group": 1, "norm_topk_prob": False, "routed_scaling_factor": None}),
    ("mistral4", {**TIED, "attention_bias": True, "q_lora_rank": None, "norm_topk_prob": False, "n_shared_experts": 2}),
    ("mistral4", {"rope_interleave": False, "first_k_dense_replace": 1, "n_group": 1, "topk_group": 1}),
    ("mistral4", {"qk_nope_head_dim": 2, "v_head_dim": 3, "rope_parameters": {**LINEAR_ROPE, **GROWTH}}),
    ("mistral4", {"n_group": 2, "topk_group": 1, "hidden_act": "gelu", "rope_parameters": {**DYNAMIC_ROPE, **GROWTH}}),
    ("cohere2_moe", {**UNTIED, "attention_bias": True, "rms_norm_eps": 0.1, "norm_topk_prob": False}),
    ("cohere2_moe", {"expert_selection_fn": "sigmoid", "shared_expert_combination_strategy": "sum", "head_dim": 10}),
    ("cohere2_moe", {"expert_selection_fn": "sigmoid", "norm_topk_prob": False, "num_shared_experts": 0}),
    (
        "cohere2_moe",
        {
            **{"first_k_dense_replace": 3, "prefix_dense_sliding_window_pattern": 2, "sliding_window": 1},
            **{"prefix_dense_intermediate_size": None, "rope_parameters": YARN_ROPE, "num_key_value_heads": None},
        },
    ),
    ("cohere2_moe", {"layer_types": [*FULL, *SLIDING] * 2, "mlp_layer_types": ["sparse", "dense"] * 2}),
    ("granite_swa", {**UNTIED, "attention_bias": True, "mlp_bias": True, "layer_rope_theta": None}),
    ("granite_swa", {"layer_types": FULL * 4, "rope_parameters": LLAMA3_ROPE, "layer_rope_theta": [0, 9.0, 0, 0]}),
    ("granite_swa", {"num_key_value_heads": 6, "sliding_window": 1, "num_hidden_layers": 3, "layer_rope_theta": None}),
    ("granitemoe_swa", {**TIED, "attention_bias": False, "layer_rope_theta": None, "layer_types": None}),
    ("granitemoe_swa", {"shared_intermediate_size": 0, "num_experts_per_tok": 5, "rope_parameters": YARN_ROPE}),
    ("granitemoe_swa", {"num_local_experts": 1, "num_experts_per_tok": 1, "sliding_window": 1, "hidden_act": "gelu"}),
    ("hy_v3", {**TIED, "attention_bias": False, "mlp_bias": True, "rope_parameters": YARN_ROPE}),
    ("hy_v3", {"mlp_layer_types": ["sparse", "dense", "sparse"], "num_experts_per_tok": 4, "head_dim": 10}),
    ("hy_v3", {"num_shared_experts": 1, "router_scaling_factor": 0.4, "num_key_value_heads": 6, "hidden_act": "gelu"}),
    ("hyperclovax", {**TIED, "use_post_norm": False, "mlp_bias": True, "rope_parameters": YARN_ROPE}),
    ("hyperclovax", {"attention_multiplier": 0.3, "head_dim": 10, "num_key_value_heads": None}),
    ("hyperclovax", {"head_dim": None, "rope_parameters": LLAMA3_ROPE, "rms_norm_eps": 0.1}),
    ("internlm3", {**TIED, "attention_bias": False, "mlp_bias": False, "rope_parameters": LINEAR_ROPE}),
    ("internlm3", {"head_dim": 10, "num_key_value_heads": 6, "rope_parameters": DYNAMIC_ROPE}),
    ("internlm3", {"hidden_act": "gelu", "num_key_value_heads": None, "rope_parameters": YARN_ROPE}),
    ("iquestcoder", {**TIED, "attention_bias": True, "rope_parameters": YARN_ROPE}),
    ("iquestcoder", {"mlp_bias": False, "head_dim": 12, "num_key_value_heads": 3}),
    ("iquestcoder", {"hidden_act": "relu", "num_hidden_layers": 1, "rope_parameters": DYNAMIC_ROPE}),
    ("mimo", {**TIED, "rope_parameters": YARN_ROPE, "hidden_act": "gelu"}),
    ("mimo", {"head_dim": 10, "use_sliding_window": True, "sliding_window": 7, "max_window_layers": 1}),
    ("ministral", {**TIED, "layer_types": None, "rope_parameters": LLAMA3_ROPE}),
    ("ministral", {"sliding_window": 3, "layer_types": FULL * 2, "head_dim": 10}),
    ("ministral", {"sliding_window": 1, "num_key_value_heads": 6, "rope_parameters": YARN_ROPE}),
    ("vaultgemma", {**UNTIED, "attention_bias": True, "attn_logit_softcapping": None, "final_logit_softcapping": None}),
    ("vaultgemma", {"layer_types": FULL * 2, "num_key_value_heads": 6, "hidden_activation": "silu"}),
    ("vaultgemma", {"num_hidden_layers": 3, "sliding_window": 1, "rope_parameters": YARN_ROPE}),
    ("solar_open", {**TIED, "attention_bias": False, "norm_topk_prob": False, "n_shared_experts": 3}),
    ("solar_open", {"n_group": 3, "topk_group": 2, "routed_scaling_factor": 0.3, "rope_parameters": YARN_ROPE}),
    ("solar_open", {"head_dim": 10, "num_key_value_heads": 6, "rope_parameters": LLAMA3_ROPE}),
    ("exaone_moe", {**TIED, "mlp_layer_types": ["sparse", "dense"] * 2, "num_shared_experts": 2}),
    ("exaone_moe", {"sliding_window": 1, "layer_types": FULL * 4, "n_group": 2, "topk_group": 1}),
    ("exaone_moe", {"sliding_window_pattern": 2, "first_k_dense_replace": 0, "norm_topk_prob": False}),
    ("flex_olmo", {**TIED, "attention_bias": True, "norm_topk_prob": False, "num_key_value_heads": None}),
    ("flex_olmo", {"num_experts": 1, "num_experts_per_tok": 1, "rope_parameters": YARN_ROPE}),
    ("flex_olmo", {"num_experts_per_tok": 5, "hidden_act": "gelu", "rms_norm_eps": 0.1}),
    (
        "nemotron-nas",
        {
            **pruned(({"n_heads_in_group": 6}, {"intermediate_size": 17}), (NONE, NONE), (NONE, {"ffn_mult": 9.3})),
            **{**TIED, "attention_bias": True, "mlp_bias": True, "rope_parameters": LLAMA3_ROPE},
        },
    ),
    (
        "nemotron-nas",
        {
            **pruned(
                ({"n_heads_in_group": 3}, {**NONE, "replace_with_linear": False}),
                ({"n_heads_in_group": 1}, {"intermediate_size": 3, "hidden_act": "relu", "gated": True}),
            ),
            **{"head_dim": 10, "rope_parameters": YARN_ROPE, "rms_norm_eps": 0.1},
        },
    ),
    ("nemotron-nas", {**pruned((NONE, {"intermediate_size": 5}), (NONE, NONE)), "hidden_act": "gelu"}),
    ("mellum", {**TIED, "attention_bias": True, "layer_types": None, "norm_topk_prob": False}),
    ("mellum", {"mlp_layer_types": ["dense", "sparse"], "num_key_value_heads": 6, "rope_parameters": None}),
    ("mellum", {"num_experts_per_tok": 5, "sliding_window": 1, "head_dim": 10}),
]
REFUSED = [
    ("minicpm3", {"num_key_value_heads": 2}, "`num_key_value_heads` is `2`, only `6` is supported"),
    ("deepseek_v2", {"norm_topk_prob": True}, "`norm_topk_prob` is `True`, only `False` is supported"),
    ("deepseek_v2", {"n_group": 4}, "2 of 4 groups cannot be chosen of 6 experts"),
    ("deepseek_v3", {"moe_layer_freq": 2}, "`moe_layer_freq` is `2`, only `1` is supported"),
    ("deepseek_v3", {"head_dim": 10}, "`head_dim` is `10`, only `6` or `16` is supported"),
    ("solar_open", {"rope_parameters": {"rope_theta": 9.0, "partial_rotary_factor": 0.5}}, "leaves 4 of 8 elements"),
    (
        "mistral4",
        {"rope_parameters": {"rope_theta": 9.0, **GROWTH}},
        "`rope_type` is `default`, which is not supported",
    ),
    (
        "cohere2_moe",
        {"sliding_window_pattern": 0, "layer_types": [*FULL, *SLIDING] * 2},
        "patterns of sliding windows are 1 and 0; expected 1 or more",
    ),
    ("mimo_v2_flash", {"swa_v_head_dim": 8}, "`swa_v_head_dim` is `8`, only `6` is supported"),
    ("mimo_v2_flash", {"add_full_attention_sink_bias": True}, "`add_full_attention_sink_bias` is `True`, only `False`"),
    (
        "mimo_v2_flash",
        {"head_dim": 16, "rope_parameters": None},
        "5 of 16 elements turn in full_attention; expected an",
    ),
    ("mimo_v2_flash", {"v_head_dim": 9}, "`v_head_dim` is 9, above `head_dim`, 8"),
    ("afmoe", {"score_func": "softmax"}, "`score_func` is `softmax`, only `sigmoid` is supported"),
    ("laguna", {"gating": "per-token"}, "`gating` is `per-token`, which is not known"),
    ("laguna", {"gating": False}, "`gating` is `False`; expected text"),
    ("laguna", {"partial_rotary_factor": 0.25}, "`partial_rotary_factor` is `0.25`, only `0.5` is supported"),
    ("nemotron-nas", {"num_hidden_layers": 3}, "`block_configs` has 4 entries for 3 layers"),
    (
        "nemotron-nas",
        pruned((NONE, NONE), ({"n_heads_in_group": 2, "num_sink_tokens": 4}, NONE)),
        "`block_configs[1].attention` has `num_sink_tokens`, `4`, which is not supported",
    ),
    (
        "nemotron-nas",
        pruned((NONE, {"replace_with_linear": True})),
        "`block_configs[0].ffn` has `replace_with_linear`, `True`, which is not supported",
    ),
    (
        "nemotron-nas",
        pruned((NONE, {"intermediate_size": 8, "sparsify": ["*"]})),
        "`block_configs[0].ffn` has `sparsify`, `['*']`, which is not supported",
    ),
    (
        "nemotron-nas",
        pruned((NONE, {"intermediate_size": 8, "gated": False})),
        "`block_configs[0].ffn` is not gated, which is not supported",
    ),
    ("nemotron-nas", pruned((NONE, {"ffn_mult": 0.0})), "`block_configs[0].ffn` has no width: neither"),
    (
        "nemotron-nas",
        pruned(({"n_heads_in_group": 1, "window_length": 9}, NONE)),
        "`block_configs[0].attention` has `window_length`, `9`, which is not supported",
    ),
    ("granite_swa", {"layer_rope_theta": [1.0]}, "`layer_rope_theta` has 1 entries for 4 layers"),
]


@pytest.mark.parametrize(("name", "changes"), VARIANTS, ids=str)
def test_unusual_settings_give_the_logits_of_transformers(name: str, changes: dict[str, Any]) -> None:
    assert error_of_logits(name, changes) <= 1e-5


@pytest.mark.parametrize(("name", "changes", "error"), REFUSED, ids=str)
def test_settings_that_are_not_supported_are_refused_by_name(name: str, changes: dict[str, Any], error: str) -> None:
    assert error in refusal(name, changes)
