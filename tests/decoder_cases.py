"""Tiny models of every decoder family: odd sizes, grouped heads where the family has them."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any


@dataclass(frozen=True)
class Case:
    """A model with random weights. config: what `AutoConfig.for_model` takes besides `model_type`.

    attention: transformers' implementation to compare with.
    """

    name: str
    model_type: str
    config: dict[str, Any] = field(hash=False)
    attention: str = "eager"

    def __str__(self) -> str:
        return self.name


SIZES = {
    "vocab_size": 67,
    "hidden_size": 42,
    "intermediate_size": 76,
    "num_hidden_layers": 2,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 100.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}


def case(name: str, model_type: str, *without: str, **changes: Any) -> Case:
    """Return a case with SIZES, without the fields a family lacks, with changes."""
    kept = {key: value for key, value in SIZES.items() if key not in without}
    return Case(name, model_type, {**kept, **changes})


YARN_ROPE = {
    "rope_type": "yarn",
    "rope_theta": 100.0,
    "factor": 4.0,
    "beta_fast": 2.0,
    "beta_slow": 0.1,
    "original_max_position_embeddings": 16,
}
GROWING_ROPE = {**YARN_ROPE, "llama_4_scaling_beta": 0.7, "original_max_position_embeddings": 4}
LONG_ROPE = {
    "rope_type": "longrope",
    "rope_theta": 100.0,
    "partial_rotary_factor": 0.5,
    "short_factor": [1.0, 1.5, 2.0],
    "long_factor": [1.0, 3.0, 6.0],
    "original_max_position_embeddings": 48,
}
ALPHA_ROPE = {"rope_type": "dynamic", "alpha": 50.0, "factor": 1.0, "beta_fast": 32, "mscale": 1.0}
EXPERTS = {"moe_intermediate_size": 36, "num_experts": 5, "num_experts_per_tok": 2}
GPT2_SIZES = {"vocab_size": 67, "n_positions": 64, "n_embd": 48, "n_layer": 2, "n_head": 6, "bos_token_id": 1}
XGLM_SIZES = {
    "vocab_size": 67,
    "d_model": 48,
    "ffn_dim": 76,
    "num_layers": 2,
    "attention_heads": 6,
    "max_position_embeddings": 64,
    "pad_token_id": 5,  # zeroes the vector of position 3
}
MPT_SIZES = {"vocab_size": 67, "max_seq_len": 64, "d_model": 48, "n_layers": 2, "n_heads": 6}
NO_HEAD_DIM = ("head_dim",)
NO_GROUPS = ("head_dim", "num_key_value_heads")
NO_SIZE = (*NO_GROUPS, "intermediate_size")
# transformers 5.23 adds ALiBi twice in its eager attention: to the scores, and to the mask.
FALCON_ALIBI = replace(
    case("falcon-alibi", "falcon", *NO_SIZE, num_attention_heads=4, hidden_size=48, multi_query=False, alibi=True),
    attention="sdpa",
)
CASES = [
    case("llama", "llama"),
    case("llama-3", "llama", tie_word_embeddings=True, rope_parameters=LLAMA3_ROPE),
    case("llama-biases", "llama", attention_bias=True, mlp_bias=True, num_key_value_heads=6),
    case("mistral", "mistral", sliding_window=7),
    case("mixtral", "mixtral", num_local_experts=5, num_experts_per_tok=2, sliding_window=None),
    case("qwen2", "qwen2", *NO_HEAD_DIM, hidden_size=48),
    case(
        "qwen2-sliding",
        "qwen2",
        *NO_HEAD_DIM,
        hidden_size=48,
        use_sliding_window=True,
        sliding_window=7,
        max_window_layers=1,
        rope_parameters=YARN_ROPE,
    ),
    case(
        "qwen2_moe",
        "qwen2_moe",
        *NO_HEAD_DIM,
        hidden_size=48,
        num_hidden_layers=3,
        **EXPERTS,
        shared_expert_intermediate_size=52,
        mlp_only_layers=[1],
    ),
    case("qwen3", "qwen3", tie_word_embeddings=True),
    case("qwen3_moe", "qwen3_moe", **EXPERTS, norm_topk_prob=True),
    case("gemma", "gemma"),
    case("gemma2", "gemma2", query_pre_attn_scalar=12, sliding_window=7, attn_logit_softcapping=5.0),
    case(
        "gemma3",
        "gemma3_text",
        query_pre_attn_scalar=12,
        sliding_window=7,
        num_hidden_layers=3,
        layer_types=["sliding_attention", "full_attention", "sliding_attention"],
    ),
    case("phi", "phi", *NO_HEAD_DIM, hidden_size=48, qk_layernorm=True),
    case("phi3", "phi3", *NO_HEAD_DIM, hidden_size=72, sliding_window=7, rope_parameters=LONG_ROPE),
    Case("gpt2", "gpt2", GPT2_SIZES),
    case("gpt_neox", "gpt_neox", *NO_GROUPS, hidden_size=48),
    case("gpt_neox-sequential", "gpt_neox", *NO_GROUPS, hidden_size=48, use_parallel_residual=False),
    case("opt", "opt", *NO_SIZE, hidden_size=48, ffn_dim=76, word_embed_proj_dim=48),
    case(
        "opt-post-norm",
        "opt",
        *NO_SIZE,
        hidden_size=48,
        ffn_dim=76,
        word_embed_proj_dim=48,
        do_layer_norm_before=False,
    ),
    Case("bloom", "bloom", {"vocab_size": 67, "hidden_size": 48, "n_layer": 2, "n_head": 6}),
    case("falcon-7b", "falcon", *NO_SIZE, hidden_size=48),
    case("falcon-40b", "falcon", *NO_SIZE, hidden_size=48, new_decoder_architecture=True, num_kv_heads=2),
    case("falcon-sequential", "falcon", *NO_SIZE, hidden_size=48, multi_query=False, parallel_attn=False, bias=True),
    case("starcoder2", "starcoder2", *NO_HEAD_DIM, hidden_size=48, sliding_window=7),
    FALCON_ALIBI,
    case("stablelm-12b", "stablelm", *NO_HEAD_DIM, hidden_size=96, qk_layernorm=True, use_parallel_residual=True),
    case("olmo2", "olmo2", *NO_HEAD_DIM, hidden_size=48),
    case(
        "granite",
        "granite",
        *NO_HEAD_DIM,
        hidden_size=48,
        embedding_multiplier=3.0,
        logits_scaling=2.5,
        residual_multiplier=0.3,
        attention_multiplier=0.2,
    ),
    case("cohere", "cohere", *NO_HEAD_DIM, hidden_size=48, use_qk_norm=True, logit_scale=0.3),
    case("stablelm", "stablelm", *NO_HEAD_DIM, hidden_size=96, use_qkv_bias=True),
    case("stablelm-parallel", "stablelm", *NO_HEAD_DIM, hidden_size=96, use_parallel_residual=True),
    case("smollm3", "smollm3", *NO_HEAD_DIM, hidden_size=48, no_rope_layers=[1, 0]),
    Case("gpt_bigcode", "gpt_bigcode", GPT2_SIZES),
    Case("gptj", "gptj", {**GPT2_SIZES, "rotary_dim": 6}),
    Case("codegen", "codegen", {**GPT2_SIZES, "n_head": 4, "rotary_dim": 6}),
    case("gpt_neo", "gpt_neo", *NO_SIZE, hidden_size=48, attention_types=[[["local", "global"], 1]], window_size=7),
    case("nemotron", "nemotron", rope_parameters={"rope_theta": 100.0, "partial_rotary_factor": 0.25}),
    case("hunyuan_v1_dense", "hunyuan_v1_dense", rope_parameters={"rope_theta": 10.0, **ALPHA_ROPE}),
    case("jais2", "jais2", mlp_bias=False),
    case("nanochat", "nanochat", final_logit_softcapping=3.0),
    Case("xglm", "xglm", XGLM_SIZES),
    case("apertus", "apertus", rope_parameters=LLAMA3_ROPE),
    case("olmoe", "olmoe", *NO_HEAD_DIM, hidden_size=48, num_experts=5, num_experts_per_tok=2, norm_topk_prob=True),
    Case("mpt", "mpt", {**MPT_SIZES, "attn_config": {"softmax_scale": 0.2}}),
    case(
        "ernie4_5_moe",
        "ernie4_5_moe",
        *NO_HEAD_DIM,
        hidden_size=48,
        num_hidden_layers=3,
        moe_intermediate_size=40,
        num_experts=5,
        num_experts_per_tok=2,
        moe_layer_end_index=1,
        moe_norm_min=0.7,
        use_bias=True,
    ),
    Case("gpt_bigcode-multi-head", "gpt_bigcode", {**GPT2_SIZES, "multi_query": False}),
    case("seed_oss", "seed_oss", attention_out_bias=True, mlp_bias=True),
    case("arcee", "arcee", head_dim=10, rope_parameters=YARN_ROPE, tie_word_embeddings=True),
    case("cwm", "cwm", num_hidden_layers=3, sliding_window=7, rope_parameters=LLAMA3_ROPE, mlp_bias=True),
    case(
        "ministral3",
        "ministral3",
        sliding_window=17,
        rope_parameters=GROWING_ROPE,
    ),
    case("ernie4_5", "ernie4_5", use_bias=True, tie_word_embeddings=False),
    case("helium", "helium", hidden_size=48, attention_bias=True, mlp_bias=True, rope_parameters=LLAMA3_ROPE),
    case("glm", "glm", tie_word_embeddings=True),
    case("glm4", "glm4", attention_bias=False, rope_parameters={**YARN_ROPE, "partial_rotary_factor": 0.75}),
    case("exaone4", "exaone4", num_hidden_layers=3, sliding_window=7, sliding_window_pattern=2),
    case("exaone4-global", "exaone4", sliding_window=None, layer_types=["full_attention"] * 2),
    case("cohere2", "cohere2", *NO_HEAD_DIM, hidden_size=48, num_hidden_layers=4, sliding_window=7, logit_scale=0.3),
    case("olmo", "olmo", *NO_HEAD_DIM, hidden_size=48, clip_qkv=0.3, attention_bias=True),
    case(
        "olmo3",
        "olmo3",
        *NO_HEAD_DIM,
        hidden_size=48,
        sliding_window=7,
        layer_types=["full_attention", "sliding_attention"],
        rope_parameters={"full_attention": YARN_ROPE, "sliding_attention": {"rope_theta": 50.0}},
    ),
]
# One of each kind of rotation, attention and feed-forward: what holds for all families by type is tested on these.
VARIED = ("llama", "gemma2", "qwen3_moe", "gpt2", "bloom")
