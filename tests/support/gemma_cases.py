"""Tiny models of Gemma 3n and 4."""

from __future__ import annotations

from tests.support.decoder_case import case

GEMMA_CASES = [
    case(
        "gemma4",
        "gemma4_text",
        num_hidden_layers=8,
        sliding_window=7,
        global_head_dim=12,
        num_kv_shared_layers=2,
        use_double_wide_mlp=True,
        hidden_size_per_layer_input=6,
        vocab_size_per_layer_input=67,
        final_logit_softcapping=5.0,
    ),
    case(
        "gemma4-no-values",
        "gemma4_text",
        num_hidden_layers=3,
        sliding_window=7,
        global_head_dim=12,
        attention_k_eq_v=True,
        num_global_key_value_heads=1,
        hidden_size_per_layer_input=0,
    ),
    case(
        "gemma4-moe",
        "gemma4_text",
        num_hidden_layers=3,
        sliding_window=7,
        global_head_dim=12,
        hidden_size_per_layer_input=0,
        enable_moe_block=True,
        num_experts=5,
        top_k_experts=2,
        moe_intermediate_size=36,
    ),
    case(
        "gemma3n",
        "gemma3n_text",
        num_hidden_layers=7,
        sliding_window=7,
        num_kv_shared_layers=2,
        hidden_size_per_layer_input=6,
        vocab_size_per_layer_input=60,
        laurel_rank=5,
        activation_sparsity_pattern=[0.7, 0.0, 0.0, 0.9, 0.0, 0.8, 0.0],
        intermediate_size=[76, 76, 80, 76, 60, 76, 88],
    ),
]
