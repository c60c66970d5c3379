"""Fields that published checkpoints state, old ones too: all are understood, none is ignored."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import pytest
from transformers import AutoConfig

from trtkit.dtypes import FP16
from trtkit.errors import TrtkitError
from trtkit.models.feed_forward import MlpSpec
from trtkit.models.registry import decoder_spec

if TYPE_CHECKING:
    from trtkit.models.attention import AttentionSpec
    from trtkit.models.spec import DecoderSpec

SMOLLM2 = {
    "model_type": "llama", "hidden_size": 576, "intermediate_size": 1536, "num_hidden_layers": 30,
    "num_attention_heads": 9, "num_key_value_heads": 3, "vocab_size": 49152, "max_position_embeddings": 8192,
    "rope_theta": 100000, "rope_scaling": None, "rope_interleaved": False, "is_llama_config": True,
    "tie_word_embeddings": True, "attention_bias": False, "mlp_bias": False, "pretraining_tp": 1, "hidden_act": "silu",
    "rms_norm_eps": 1e-05, "transformers.js_config": {"kv_cache_dtype": {"fp16": "float16"}}, "torch_dtype": "bfloat16",
}  # fmt: skip
PHI3 = {
    "model_type": "phi3", "hidden_size": 3072, "intermediate_size": 8192, "num_hidden_layers": 32,
    "num_attention_heads": 32, "num_key_value_heads": 32, "vocab_size": 32064, "max_position_embeddings": 131072,
    "original_max_position_embeddings": 4096, "sliding_window": 262144, "rms_norm_eps": 1e-05, "rope_theta": 10000.0,
    "rope_scaling": {"type": "longrope", "short_factor": [1.0] * 48, "long_factor": [4.0] * 48},
    "tie_word_embeddings": False, "embd_pdrop": 0.0, "resid_pdrop": 0.0, "attention_bias": False,
    "auto_map": {"AutoConfig": "configuration_phi3.Phi3Config"},
}  # fmt: skip
PYTHIA = {
    "model_type": "gpt_neox", "hidden_size": 512, "intermediate_size": 2048, "num_hidden_layers": 6,
    "num_attention_heads": 8, "vocab_size": 50304, "max_position_embeddings": 2048, "rotary_pct": 0.25,
    "rotary_emb_base": 10000, "use_parallel_residual": True, "tie_word_embeddings": False, "hidden_act": "gelu",
    "layer_norm_eps": 1e-05, "initializer_range": 0.02,
}  # fmt: skip
BLOOM = {
    "model_type": "bloom", "n_embed": 1024, "n_head": 16, "n_layer": 24, "n_inner": None, "vocab_size": 250880,
    "offset_alibi": 100, "skip_bias_add": True, "skip_bias_add_qkv": False, "masked_softmax_fusion": True,
    "bias_dropout_fusion": True, "attention_softmax_in_fp32": True, "pretraining_tp": 1, "seq_length": 2048,
    "apply_residual_connection_post_layernorm": False, "layer_norm_epsilon": 1e-05,
}  # fmt: skip
GEMMA = {
    "model_type": "gemma", "hidden_size": 2048, "intermediate_size": 16384, "num_hidden_layers": 18,
    "num_attention_heads": 8, "num_key_value_heads": 1, "head_dim": 256, "vocab_size": 256000,
    "max_position_embeddings": 8192, "hidden_act": "gelu", "hidden_activation": None, "rope_theta": 10000.0,
    "rms_norm_eps": 1e-06, "attention_bias": False,
}  # fmt: skip
GEMMA2 = {
    "model_type": "gemma2", "hidden_size": 2304, "intermediate_size": 9216, "num_hidden_layers": 26,
    "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256, "vocab_size": 256000,
    "max_position_embeddings": 8192, "hidden_act": "gelu_pytorch_tanh", "hidden_activation": "gelu_pytorch_tanh",
    "query_pre_attn_scalar": 256, "sliding_window": 4096, "attn_logit_softcapping": 50.0, "rope_theta": 10000.0,
    "final_logit_softcapping": 30.0, "cache_implementation": "hybrid", "rms_norm_eps": 1e-06, "attention_bias": False,
}  # fmt: skip
GEMMA3 = {
    "model_type": "gemma3_text", "hidden_size": 640, "intermediate_size": 2048, "num_hidden_layers": 12,
    "num_attention_heads": 4, "num_key_value_heads": 1, "head_dim": 256, "vocab_size": 262144,
    "max_position_embeddings": 32768, "hidden_activation": "gelu_pytorch_tanh", "query_pre_attn_scalar": 256,
    "sliding_window": 512, "sliding_window_pattern": 6, "rope_theta": 1000000.0, "rope_local_base_freq": 10000.0,
    "rope_scaling": None, "attn_logit_softcapping": None, "final_logit_softcapping": None, "rms_norm_eps": 1e-06,
}  # fmt: skip
STARCODER2 = {
    "model_type": "starcoder2", "hidden_size": 3072, "intermediate_size": 12288, "num_hidden_layers": 30,
    "num_attention_heads": 24, "num_key_value_heads": 2, "vocab_size": 49152, "max_position_embeddings": 16384,
    "mlp_type": "default", "norm_type": "layer_norm", "norm_epsilon": 1e-05, "rope_theta": 999999.44,
    "sliding_window": 4096, "use_bias": True, "hidden_act": "gelu_pytorch_tanh", "residual_dropout": 0.1,
}  # fmt: skip
FALCON = {
    "model_type": "falcon", "hidden_size": 4544, "num_attention_heads": 71, "num_hidden_layers": 32,
    "vocab_size": 65024, "multi_query": True, "parallel_attn": True, "new_decoder_architecture": False, "alibi": False,
    "bias": False, "layer_norm_epsilon": 1e-05, "hidden_dropout": 0.0, "attention_dropout": 0.0,
}  # fmt: skip
GPT2 = {
    "model_type": "gpt2", "n_embd": 768, "n_head": 12, "n_layer": 12, "n_positions": 1024, "n_ctx": 1024,
    "vocab_size": 50257, "activation_function": "gelu_new", "layer_norm_epsilon": 1e-05, "resid_pdrop": 0.1,
    "summary_type": "cls_index", "summary_use_proj": True, "summary_proj_to_labels": True,
    "task_specific_params": {"text-generation": {"do_sample": True, "max_length": 50}},
}  # fmt: skip
QWEN2 = {
    "model_type": "qwen2", "hidden_size": 896, "intermediate_size": 4864, "num_hidden_layers": 24,
    "num_attention_heads": 14, "num_key_value_heads": 2, "vocab_size": 151936, "max_position_embeddings": 32768,
    "max_window_layers": 21, "use_sliding_window": False, "sliding_window": 32768, "rope_theta": 1000000.0,
    "tie_word_embeddings": True, "use_mrope": False, "rms_norm_eps": 1e-06, "hidden_act": "silu",
}  # fmt: skip
SMOLLM3 = {
    "model_type": "smollm3", "hidden_size": 2048, "intermediate_size": 11008, "num_hidden_layers": 36,
    "num_attention_heads": 16, "num_key_value_heads": 4, "vocab_size": 128256, "max_position_embeddings": 65536,
    "no_rope_layer_interval": 4, "no_rope_layers": [1, 1, 1, 0] * 9, "layer_types": ["full_attention"] * 36,
    "max_window_layers": 28, "use_sliding_window": False, "sliding_window": None, "rope_theta": 5000000.0,
    "mlp_bias": False, "attention_bias": False, "pretraining_tp": 2,
}  # fmt: skip
LFM2 = {
    "model_type": "lfm2", "hidden_size": 2048, "block_auto_adjust_ff_dim": True, "block_dim": 2048,
    "block_ff_dim": 12288, "block_ffn_dim_multiplier": 1.0, "block_mlp_init_scale": 1.0, "block_multiple_of": 256,
    "block_norm_eps": 1e-05, "block_out_init_scale": 1.0, "block_use_swiglu": True, "block_use_xavier_init": True,
    "conv_L_cache": 3, "conv_bias": False, "conv_dim": 2048, "conv_dim_out": 2048, "conv_use_xavier_init": True,
    "full_attn_idxs": [2, 5, 8, 10, 12, 14], "max_position_embeddings": 128000, "norm_eps": 1e-05,
    "num_attention_heads": 32, "num_heads": 32, "num_hidden_layers": 16, "num_key_value_heads": 8,
    "rope_theta": 1000000.0, "use_pos_enc": True, "vocab_size": 65536,
}  # fmt: skip
QWEN3_NEXT = {
    "model_type": "qwen3_next", "attention_bias": False, "decoder_sparse_step": 1, "full_attention_interval": 4,
    "head_dim": 256, "hidden_act": "silu", "hidden_size": 2048, "intermediate_size": 5120, "linear_conv_kernel_dim": 4,
    "linear_key_head_dim": 128, "linear_num_key_heads": 16, "linear_num_value_heads": 32, "linear_value_head_dim": 128,
    "max_position_embeddings": 262144, "mlp_only_layers": [], "moe_intermediate_size": 512, "norm_topk_prob": True,
    "num_attention_heads": 16, "num_experts": 512, "num_experts_per_tok": 10, "num_hidden_layers": 48,
    "num_key_value_heads": 2, "partial_rotary_factor": 0.25, "rms_norm_eps": 1e-06, "rope_scaling": None,
    "rope_theta": 10000000, "shared_expert_intermediate_size": 512, "use_sliding_window": False, "vocab_size": 151936,
}  # fmt: skip
KIMI_LINEAR = {
    "model_type": "kimi_linear", "first_k_dense_replace": 1, "head_dim": 72, "hidden_act": "silu", "hidden_size": 2304,
    "intermediate_size": 9216, "kv_lora_rank": 512, "mla_use_nope": True, "model_max_length": 1048576,
    "linear_attn_config": {"full_attn_layers": [4, 8, 12, 16, 20, 24, 27], "head_dim": 128, "num_heads": 32,
                           "kda_layers": [n for n in range(1, 27) if n % 4], "short_conv_kernel_size": 4},
    "moe_intermediate_size": 1024, "moe_layer_freq": 1, "moe_renormalize": True, "rope_theta": 10000.0,
    "moe_router_activation_func": "sigmoid", "num_attention_heads": 32, "num_expert_group": 1, "num_experts": 256,
    "num_experts_per_token": 8, "num_hidden_layers": 27, "num_key_value_heads": 32, "num_nextn_predict_layers": 0,
    "num_shared_experts": 1, "q_lora_rank": None, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "topk_group": 1,
    "rms_norm_eps": 1e-05, "rope_scaling": None, "routed_scaling_factor": 2.446, "tie_word_embeddings": False,
    "use_cache": True, "use_grouped_topk": True, "v_head_dim": 128, "vocab_size": 163840,
}  # fmt: skip
MINICPM3 = {
    "model_type": "minicpm3", "hidden_size": 2560, "intermediate_size": 6400, "num_hidden_layers": 62,
    "num_attention_heads": 40, "num_key_value_heads": 40, "vocab_size": 73448, "max_position_embeddings": 32768,
    "q_lora_rank": 768, "kv_lora_rank": 256, "qk_nope_head_dim": 64, "qk_rope_head_dim": 32, "hidden_act": "silu",
    "scale_emb": 12, "scale_depth": 1.4, "dim_model_base": 256, "rms_norm_eps": 1e-05, "initializer_range": 0.1,
    "rope_scaling": {"type": "longrope", "long_factor": [1.5] * 16, "short_factor": [1.0] * 16,
                     "original_max_position_embeddings": 32768},
}  # fmt: skip
DEEPSEEK_V3 = {
    "model_type": "deepseek_v3", "hidden_size": 7168, "intermediate_size": 18432, "moe_intermediate_size": 2048,
    "num_hidden_layers": 61, "num_attention_heads": 128, "num_key_value_heads": 128, "vocab_size": 129280,
    "max_position_embeddings": 163840, "q_lora_rank": 1536, "kv_lora_rank": 512, "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64, "v_head_dim": 128, "n_routed_experts": 256, "n_shared_experts": 1, "ep_size": 1,
    "num_experts_per_tok": 8, "n_group": 8, "topk_group": 4, "topk_method": "noaux_tc", "scoring_func": "sigmoid",
    "norm_topk_prob": True, "routed_scaling_factor": 2.5, "first_k_dense_replace": 3, "moe_layer_freq": 1,
    "num_nextn_predict_layers": 1, "aux_loss_alpha": 0.001, "seq_aux": True, "rms_norm_eps": 1e-06,
    "rope_theta": 10000, "rope_scaling": {"type": "yarn", "factor": 40, "beta_fast": 32, "beta_slow": 1, "mscale": 1.0,
                                          "mscale_all_dim": 1.0, "original_max_position_embeddings": 4096},
    "tie_word_embeddings": False, "attention_bias": False, "attention_dropout": 0.0, "hidden_act": "silu",
}  # fmt: skip
DEEPSEEK_V2_LITE = {
    "model_type": "deepseek_v2", "hidden_size": 2048, "intermediate_size": 10944, "moe_intermediate_size": 1408,
    "num_hidden_layers": 27, "num_attention_heads": 16, "num_key_value_heads": 16, "vocab_size": 102400,
    "max_position_embeddings": 163840, "q_lora_rank": None, "kv_lora_rank": 512, "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64, "v_head_dim": 128, "n_routed_experts": 64, "n_shared_experts": 2, "ep_size": 1,
    "num_experts_per_tok": 6, "n_group": 1, "topk_group": 1, "topk_method": "greedy", "scoring_func": "softmax",
    "norm_topk_prob": False, "routed_scaling_factor": 1.0, "first_k_dense_replace": 1, "moe_layer_freq": 1,
    "aux_loss_alpha": 0.001, "seq_aux": True, "rms_norm_eps": 1e-06, "rope_theta": 10000,
    "rope_scaling": {"type": "yarn", "factor": 40, "beta_fast": 32, "beta_slow": 1, "mscale": 0.707,
                     "mscale_all_dim": 0.707, "original_max_position_embeddings": 4096},
    "tie_word_embeddings": False, "attention_bias": False, "attention_dropout": 0.0, "hidden_act": "silu",
}  # fmt: skip


def mlp_of(spec: DecoderSpec) -> MlpSpec:
    feed_forward = spec.layers[0].feed_forward
    assert isinstance(feed_forward, MlpSpec)
    return feed_forward


def attention_of(spec: DecoderSpec) -> AttentionSpec:
    return spec.layers[0].attention


def windows_of(spec: DecoderSpec) -> list[int | None]:
    return [layer.attention.sliding_window for layer in spec.layers]


def thetas_of(spec: DecoderSpec) -> list[float | None]:
    return [layer.attention.rope.theta if layer.attention.rope else None for layer in spec.layers]


@pytest.mark.parametrize(
    ("fields", "look", "want"),
    [
        (SMOLLM2, lambda s: (attention_of(s).head_dim, s.head.is_tied, thetas_of(s)[0]), (64, True, 1e5)),
        (PHI3, lambda s: attention_of(s).rope.parameters["factor"], 32.0),
        (PYTHIA, lambda s: (attention_of(s).rope.dim, attention_of(s).qkv, s.block.is_parallel), (16, "grouped", True)),
        (BLOOM, lambda s: (mlp_of(s).intermediate_size, attention_of(s).has_alibi, s.head.is_tied), (4096, True, True)),
        (GEMMA, lambda s: (mlp_of(s).activation, s.head.is_tied), ("gelu_pytorch_tanh", True)),
        (GEMMA2, lambda s: (windows_of(s)[:3], s.head.softcap), ([4096, None, 4096], 30.0)),
        (GEMMA3, lambda s: (windows_of(s)[4:7], thetas_of(s)[4:7]), ([512, None, 512], [1e4, 1e6, 1e4])),
        (STARCODER2, lambda s: (windows_of(s)[0], s.block.norm.kind, s.head.is_tied), (4096, "layer", True)),
        (FALCON, lambda s: (attention_of(s).num_key_value_heads, s.block.norms), (1, ("attention_norm",))),
        (GPT2, lambda s: (s.embedding.positions.count, mlp_of(s).intermediate_size, s.is_in_out), (1024, 3072, True)),
        (QWEN2, lambda s: (set(windows_of(s)), attention_of(s).has_qkv_bias), ({None}, True)),
        (QWEN3_NEXT, lambda s: (s.attentions[0].rope.dim, len(s.attentions), s.states[1].elements), (64, 12, 1 << 19)),
        (LFM2, lambda s: (mlp_of(s).intermediate_size, len(s.attentions), s.state_bytes(FP16)), (8192, 6, 81920)),
        (KIMI_LINEAR, lambda s: (len(s.attentions), s.cached_elements, s.states[1].elements), (7, 4032, 1 << 19)),
        (MINICPM3, lambda s: (s.cached_elements, s.head.logit_scale, attention_of(s).output_size), (17856, 0.1, 2560)),
        (DEEPSEEK_V3, lambda s: (s.cached_elements, s.unused), (61 * 576, ("model.layers.61.",))),
        (DEEPSEEK_V2_LITE, lambda s: (s.cached_elements, attention_of(s).latent.query_rank), (27 * 576, None)),
        (SMOLLM3, lambda s: thetas_of(s)[:5], [5e6, 5e6, 5e6, None, 5e6]),
    ],
    ids=lambda item: item["model_type"] if isinstance(item, dict) else "",
)  # fmt: skip
def test_published_configs_are_understood(fields: dict[str, Any], look: Any, want: Any) -> None:
    assert look(decoder_spec(fields)) == want


NEEDED = ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "vocab_size")
FAMILIES = ["arcee", "cohere2", "cwm", "ernie4_5", "exaone4", "glm", "glm4", "helium", "ministral3", "olmo", "olmo3"]

DERIVED = [
    "afmoe",
    "axk1",
    "cohere2_moe",
    "granitemoe_swa",
    "kimi_linear",
    "laguna",
    "hy_v3",
    "exaone_moe",
    "granite_swa",
    "hyperclovax",
    "internlm3",
    "iquestcoder",
    "mellum",
    "mimo_v2_flash",
    "mistral4",
    "vaultgemma",
    "youtu",
]


@pytest.mark.parametrize("model_type", [*FAMILIES, "seed_oss", "minicpm3", "deepseek_v3", "glm4_moe_lite", *DERIVED])
def test_fields_left_out_are_as_in_transformers(model_type: str) -> None:
    stated = {**AutoConfig.for_model(model_type).to_dict(), "model_type": model_type}
    least = {key: stated[key] for key in (*NEEDED, "model_type", "max_position_embeddings") if key in stated}
    assert decoder_spec(least) == decoder_spec(stated)


@pytest.mark.parametrize(
    ("model_type", "fields", "error"),
    [
        ("cohere2", {"layer_switch": 3}, "`layer_switch` is `3`, only `4` is supported"),
        ("cohere2", {"sliding_window": None}, "`sliding_window` is missing"),
        ("exaone4", {"sliding_window_pattern": "LLLG", "layer_types": None}, "is `LLLG` without `layer_types`"),
        ("ministral3", {"layer_types": ["full_attention"] * 34}, "which is not supported"),
        ("ministral3", {"rope_parameters": {"rope_theta": 1e6}}, "`rope_parameters` has no `llama_4_scaling_beta`"),
        ("glm4_moe_lite", {"mlp_layer_types": ["dense"]}, "`mlp_layer_types` has 1 entries for 47 layers"),
        ("glm4_moe_lite", {"mlp_layer_types": ["moe"] * 47}, "`mlp_layer_types` is `moe`, which is not known"),
        ("olmo3", {"rope_parameters": {"rope_theta": 1e6}}, "expected full_attention and sliding_attention"),
    ],
)
def test_fields_without_a_meaning_are_refused(model_type: str, fields: dict[str, Any], error: str) -> None:
    with pytest.raises(TrtkitError, match=re.escape(error)):
        decoder_spec({**AutoConfig.for_model(model_type).to_dict(), "model_type": model_type, **fields})
