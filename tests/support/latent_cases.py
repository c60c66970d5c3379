"""Tiny models of families with latent attention."""

from __future__ import annotations

from tests.support.decoder_case import LATENT, LATENT_YARN, NO_HEAD_DIM, ROUTED, case

LATENT_CASES = [
    case("minicpm3", "minicpm3", *NO_HEAD_DIM, **LATENT, scale_emb=3, scale_depth=1.2, dim_model_base=16),
    case(
        "deepseek_v2",
        "deepseek_v2",
        "head_dim",
        num_hidden_layers=3,
        n_shared_experts=2,
        n_group=3,
        topk_group=2,
        topk_method="group_limited_greedy",
        routed_scaling_factor=1.7,
        first_k_dense_replace=1,
        rope_parameters=LATENT_YARN,
        **ROUTED,
        **LATENT,
    ),
    case(
        "deepseek_v2-lite", "deepseek_v2", *NO_HEAD_DIM, n_shared_experts=1, **ROUTED, **{**LATENT, "q_lora_rank": None}
    ),
    case(
        "deepseek_v3",
        "deepseek_v3",
        "head_dim",
        num_hidden_layers=3,
        n_group=3,
        topk_group=2,
        first_k_dense_replace=1,
        rope_parameters=LATENT_YARN,
        **ROUTED,
        **LATENT,
    ),
    case(
        "glm4_moe_lite",
        "glm4_moe_lite",
        *NO_HEAD_DIM,
        n_group=2,
        topk_group=2,
        **ROUTED,
        **{**LATENT, "num_key_value_heads": 6},
    ),
    case(
        "mistral4",
        "mistral4",
        *NO_HEAD_DIM,
        n_group=3,
        topk_group=2,
        routed_scaling_factor=1.7,
        rope_parameters={**LATENT_YARN, "original_max_position_embeddings": 4, "llama_4_scaling_beta": 0.7},
        **ROUTED,
        **LATENT,
    ),
    case(
        "axk1",
        "axk1",
        *NO_HEAD_DIM,
        num_hidden_layers=3,
        n_group=3,
        topk_group=2,
        rope_parameters=LATENT_YARN,
        **{**ROUTED, "num_experts_per_tok": 2},
        **{**LATENT, "num_key_value_heads": 6},
    ),
    case("youtu", "youtu", *NO_HEAD_DIM, rope_parameters=LATENT_YARN, **{**LATENT, "num_key_value_heads": 6}),
]
