"""Tiny models of families that vary others: Granite, Llama, Gemma 2, OLMo, EXAONE, Qwen 3."""

from __future__ import annotations

from tests.decoder_case import EXPERTS, GRANITE, LLAMA3_ROPE, NO_HEAD_DIM, ROUTED, SCALED, YARN_ROPE, case

DERIVED_CASES = [
    case(
        "granite_swa",
        "granite_swa",
        *NO_HEAD_DIM,
        hidden_size=48,
        num_hidden_layers=4,
        sliding_window=7,
        layer_rope_theta=[50.0, 0, 100.0, 50.0],
        **SCALED,
    ),
    case(
        "granitemoe_swa",
        "granitemoe_swa",
        *NO_HEAD_DIM,
        hidden_size=48,
        sliding_window=7,
        layer_types=["sliding_attention", "full_attention"],
        layer_rope_theta=[50.0, 0],
        shared_intermediate_size=52,
        **GRANITE,
    ),
    case(
        "hy_v3",
        "hy_v3",
        num_hidden_layers=3,
        attention_bias=True,
        router_scaling_factor=1.7,
        num_shared_experts=2,
        **{**EXPERTS, "num_experts": 4},
    ),
    case("hyperclovax", "hyperclovax", attention_bias=True, **{**SCALED, "attention_multiplier": None}, hidden_size=48),
    case("internlm3", "internlm3", attention_bias=True, mlp_bias=True),
    case("iquestcoder", "iquestcoder", mlp_bias=True, rope_parameters=LLAMA3_ROPE),
    case("ministral", "ministral", sliding_window=7, layer_types=["sliding_attention", "full_attention"]),
    case("vaultgemma", "vaultgemma", query_pre_attn_scalar=12, sliding_window=7, attn_logit_softcapping=5.0),
    case(
        "solar_open",
        "solar_open",
        "intermediate_size",
        attention_bias=True,
        n_group=2,
        topk_group=2,
        **{**ROUTED, "num_experts_per_tok": 2},
    ),
    case(
        "exaone_moe",
        "exaone_moe",
        num_hidden_layers=4,
        sliding_window=7,
        n_group=2,
        topk_group=1,
        **{**EXPERTS, "num_experts": 4},
    ),
    case(
        "flex_olmo",
        "flex_olmo",
        *NO_HEAD_DIM,
        hidden_size=48,
        num_experts=5,
        num_experts_per_tok=3,
        norm_topk_prob=True,
    ),
    case(
        "nemotron-nas",
        "nemotron-nas",
        "intermediate_size",
        "num_key_value_heads",
        num_hidden_layers=4,
        block_configs=[
            {"attention": {"no_op": True}, "ffn": {"intermediate_size": 64}},
            {"attention": {"n_heads_in_group": 2}, "ffn": {"ffn_mult": 2.1, "no_op": False}},
            {"attention": {"n_heads_in_group": 1, "window_length": None}, "ffn": {"no_op": True}},
            {"attention": {"num_key_value_heads": 1}, "ffn": {"intermediate_size": 32}},
        ],
    ),
    case(
        "mellum",
        "mellum",
        sliding_window=7,
        layer_types=["full_attention", "sliding_attention"],
        rope_parameters={
            "full_attention": YARN_ROPE,
            "sliding_attention": {"rope_theta": 50.0, "rope_type": "default"},
        },
        **EXPERTS,
    ),
]
