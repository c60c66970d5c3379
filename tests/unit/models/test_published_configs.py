"""Fields that published checkpoints state, old ones too: all are understood, none is ignored."""

from __future__ import annotations

import re
from typing import Any

import pytest
from transformers import AutoConfig

from trtkit.errors import TrtkitError
from trtkit.models.registry import decoder_spec
from trtkit.models.spec import AttentionSpec, DecoderSpec, MlpSpec

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
        (SMOLLM3, lambda s: thetas_of(s)[:5], [5e6, 5e6, 5e6, None, 5e6]),
    ],
    ids=lambda item: item["model_type"] if isinstance(item, dict) else "",
)  # fmt: skip
def test_published_configs_are_understood(fields: dict[str, Any], look: Any, want: Any) -> None:
    assert look(decoder_spec(fields)) == want


NEEDED = ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "vocab_size")
FAMILIES = ["arcee", "cohere2", "cwm", "ernie4_5", "exaone4", "glm", "glm4", "helium", "ministral3", "olmo", "olmo3"]


@pytest.mark.parametrize("model_type", [*FAMILIES, "seed_oss"])
def test_fields_left_out_are_as_in_transformers(model_type: str) -> None:
    stated = {**AutoConfig.for_model(model_type).to_dict(), "model_type": model_type}
    least = {name: stated[name] for name in (*NEEDED, "model_type", "max_position_embeddings")}
    assert decoder_spec(least) == decoder_spec(stated)


@pytest.mark.parametrize(
    ("model_type", "fields", "error"),
    [
        ("cohere2", {"layer_switch": 3}, "`layer_switch` is `3`, only `4` is supported"),
        ("cohere2", {"sliding_window": None}, "`sliding_window` is missing"),
        ("exaone4", {"sliding_window_pattern": "LLLG", "layer_types": None}, "is `LLLG` without `layer_types`"),
        ("ministral3", {"layer_types": ["full_attention"] * 34}, "which is not supported"),
        ("ministral3", {"rope_parameters": {"rope_theta": 1e6}}, "`rope_parameters` has no `llama_4_scaling_beta`"),
        ("olmo3", {"rope_parameters": {"rope_theta": 1e6}}, "expected full_attention and sliding_attention"),
    ],
)
def test_fields_without_a_meaning_are_refused(model_type: str, fields: dict[str, Any], error: str) -> None:
    with pytest.raises(TrtkitError, match=re.escape(error)):
        decoder_spec({**AutoConfig.for_model(model_type).to_dict(), "model_type": model_type, **fields})
