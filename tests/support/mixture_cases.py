"""Tiny models of families with unusual experts: gpt-oss, Hunyuan, Llama 4."""

from __future__ import annotations

from tests.support.decoder_case import ALPHA_ROPE, LLAMA3_ROPE, YARN_ROPE, case

OSS = {"num_local_experts": 5, "num_experts_per_tok": 2, "swiglu_limit": 0.9, "sliding_window": 7}
HUNYUAN = {"rope_parameters": {"rope_theta": 10.0, **ALPHA_ROPE}}
MIXTURE_CASES = [
    case("gpt_oss", "gpt_oss", rope_parameters={**YARN_ROPE, "truncate": False}, **OSS),
    case("hunyuan_v1_moe", "hunyuan_v1_moe", num_experts=5, num_experts_per_tok=[1, 2], **HUNYUAN),
    case(
        "llama4",
        "llama4_text",
        num_hidden_layers=4,
        intermediate_size_mlp=52,
        num_local_experts=5,
        num_experts_per_tok=2,
        interleave_moe_layer_step=2,
        attention_chunk_size=6,
        floor_scale=4,
        attn_scale=0.7,
        rope_parameters=LLAMA3_ROPE,
    ),
]
