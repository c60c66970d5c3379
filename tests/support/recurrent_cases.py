"""Tiny models of families with recurrent states: name, family, fields to omit, changed fields."""

from __future__ import annotations

from typing import Any

NO_HEAD_DIM = ("head_dim",)
# Sizes for which a slot's state is a multiple of 256 bytes in fp16, as engines' alignment requires.
_DELTA = {
    "linear_conv_kernel_dim": 5,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 8,
    "linear_num_key_heads": 4,
    "linear_num_value_heads": 8,
    "num_hidden_layers": 4,
}
_MAMBA = {
    "hidden_size": 48,
    "num_hidden_layers": 2,
    "mamba_n_heads": 8,
    "mamba_n_groups": 4,
    "mamba_d_state": 8,
    "mamba_d_conv": 5,
    "mamba_proj_bias": True,
}
_EXPERTS = {
    "moe_intermediate_size": 36,
    "num_experts": 5,
    "num_experts_per_tok": 3,
    "shared_expert_intermediate_size": 52,
}
# Two layers only: near ties of experts make 16-bit results differ more with each layer.
_TWO_LAYERS = {"num_hidden_layers": 2, "layer_types": ["linear_attention", "full_attention"]}
RECURRENT: list[tuple[str, str, tuple[str, ...], dict[str, Any]]] = [
    (
        "lfm2",
        "lfm2",
        NO_HEAD_DIM,
        {
            "hidden_size": 64,
            "num_attention_heads": 4,
            "num_hidden_layers": 4,
            "full_attn_idxs": [1],
            "conv_bias": True,
            "block_auto_adjust_ff_dim": False,
        },
    ),
    ("qwen3_next", "qwen3_next", (), {**_DELTA, **_EXPERTS, **_TWO_LAYERS}),
    ("qwen3_5", "qwen3_5_text", (), _DELTA),
    (
        "nemotron_h",
        "nemotron_h",
        ("num_hidden_layers",),
        {
            "layers_block_type": ["moe", "linear_attention", "mlp", "full_attention"],
            **{"moe_intermediate_size": 36, "moe_shared_expert_intermediate_size": 52, "moe_latent_size": 28},
            **{"n_routed_experts": 6, "num_experts_per_tok": 2, "routed_scaling_factor": 1.7},
            "mamba_num_heads": 8,
            "mamba_head_dim": 12,
            "n_groups": 4,
            "ssm_state_size": 8,
            "conv_kernel": 5,
        },
    ),
    (
        "mamba2",
        "mamba2",
        ("intermediate_size", "num_attention_heads", "num_key_value_heads", "max_position_embeddings"),
        {"hidden_size": 64, "num_heads": 8, "head_dim": 16, "n_groups": 4, "state_size": 8, "conv_kernel": 5},
    ),
    ("bamba", "bamba", NO_HEAD_DIM, {**_MAMBA, "attn_layer_indices": [1]}),
    (
        "falcon_h1",
        "falcon_h1",
        NO_HEAD_DIM,
        {
            **_MAMBA,
            "mamba_d_ssm": 64,
            "mamba_rms_norm": True,
            "embedding_multiplier": 3.0,
            "lm_head_multiplier": 0.4,
            "key_multiplier": 0.7,
            "attention_in_multiplier": 0.8,
            "attention_out_multiplier": 1.3,
            "ssm_in_multiplier": 1.2,
            "ssm_out_multiplier": 0.6,
            "ssm_multipliers": [0.9, 0.5, 1.4, 0.8, 1.1],
            "mlp_multipliers": [0.7, 1.6],
        },
    ),
    (
        "granitemoehybrid",
        "granitemoehybrid",
        NO_HEAD_DIM,
        {
            **_MAMBA,
            "layer_types": ["linear_attention", "full_attention"],
            "position_embedding_type": "rope",
            "num_local_experts": 5,
            "num_experts_per_tok": 2,
            "shared_intermediate_size": 52,
            "embedding_multiplier": 3.0,
            "logits_scaling": 2.5,
            "residual_multiplier": 0.3,
            "attention_multiplier": 0.2,
        },
    ),
    ("qwen3_5_moe", "qwen3_5_moe_text", ("intermediate_size",), {**_DELTA, **_EXPERTS, **_TWO_LAYERS}),
    (
        "kimi_linear",
        "kimi_linear",
        NO_HEAD_DIM,
        {
            "num_key_value_heads": 6,
            "kv_lora_rank": 18,
            "qk_nope_head_dim": 10,
            "qk_rope_head_dim": 6,
            "v_head_dim": 14,
            **{"linear_num_heads": 4, "linear_head_dim": 16, "linear_conv_kernel_dim": 5},
            **{"moe_intermediate_size": 36, "num_experts": 4, "num_experts_per_tok": 2, "n_group": 2, "topk_group": 1},
            **_TWO_LAYERS,
        },
    ),
]
