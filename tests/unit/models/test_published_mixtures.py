"""Fields that published checkpoints of mixtures state: all are understood, none is ignored."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from trtkit.errors import SourceError
from trtkit.models.feed_forward import MoeSpec
from trtkit.models.registry import decoder_spec

if TYPE_CHECKING:
    from collections.abc import Callable

    from trtkit.models.spec import DecoderSpec

GPT_OSS_20B = {
    "model_type": "gpt_oss", "attention_bias": True, "attention_dropout": 0.0, "eos_token_id": 200002, "head_dim": 64,
    "experts_per_token": 4, "hidden_act": "silu", "hidden_size": 2880, "initial_context_length": 4096,
    "intermediate_size": 2880, "layer_types": ["sliding_attention", "full_attention"] * 12, "num_hidden_layers": 24,
    "max_position_embeddings": 131072, "num_attention_heads": 64, "num_experts_per_tok": 4, "num_local_experts": 32,
    "num_key_value_heads": 8, "output_router_logits": False, "pad_token_id": 199999, "rms_norm_eps": 1e-05,
    "rope_scaling": {"beta_fast": 32.0, "beta_slow": 1.0, "factor": 32.0, "original_max_position_embeddings": 4096,
                     "rope_type": "yarn", "truncate": False},
    "rope_theta": 150000, "router_aux_loss_coef": 0.9, "sliding_window": 128, "swiglu_limit": 7.0,
    "tie_word_embeddings": False, "use_cache": True, "vocab_size": 201088,
}  # fmt: skip
GLM_4_5_AIR = {
    "model_type": "glm4_moe", "attention_bias": True, "head_dim": 128, "hidden_act": "silu", "hidden_size": 4096,
    "partial_rotary_factor": 0.5, "intermediate_size": 10944, "max_position_embeddings": 131072,
    "moe_intermediate_size": 1408, "norm_topk_prob": True, "num_attention_heads": 96, "n_group": 1, "topk_group": 1,
    "n_routed_experts": 128, "n_shared_experts": 1, "routed_scaling_factor": 1.0, "num_experts_per_tok": 8,
    "first_k_dense_replace": 1, "num_hidden_layers": 46, "num_key_value_heads": 8, "rms_norm_eps": 1e-05,
    "rope_scaling": None, "rope_theta": 1000000, "num_nextn_predict_layers": 1, "tie_word_embeddings": False,
    "use_qk_norm": False, "vocab_size": 151552,
}  # fmt: skip
MINIMAX_M2 = {
    "model_type": "minimax_m2", "attn_type_list": [1] * 62, "head_dim": 128, "hidden_act": "silu", "hidden_size": 3072,
    "intermediate_size": 1536, "max_position_embeddings": 196608, "mtp_transformer_layers": 1, "num_mtp_modules": 3,
    "num_attention_heads": 48, "num_experts_per_tok": 8, "num_hidden_layers": 62, "num_key_value_heads": 8,
    "num_local_experts": 256, "qk_norm_type": "per_layer", "rms_norm_eps": 1e-06, "rope_theta": 5000000,
    "rotary_dim": 64, "scoring_func": "sigmoid", "shared_intermediate_size": 0, "tie_word_embeddings": False,
    "use_mtp": True, "use_qk_norm": True, "use_routing_bias": True, "vocab_size": 200064,
}  # fmt: skip
GRANITE_1B_A400M = {
    "model_type": "granitemoe", "attention_bias": False, "attention_multiplier": 0.015625, "embedding_multiplier": 12.0,
    "hidden_size": 1024, "intermediate_size": 512, "logits_scaling": 6.0, "num_experts_per_tok": 8,
    "num_local_experts": 32, "num_attention_heads": 16, "num_hidden_layers": 24, "num_key_value_heads": 8,
    "residual_multiplier": 0.22, "rms_norm_eps": 1e-06, "rope_scaling": None, "rope_theta": 10000,
    "router_aux_loss_coef": 0.0, "tie_word_embeddings": True, "vocab_size": 49155, "max_position_embeddings": 4096,
}  # fmt: skip
TRINITY_NANO = {
    "model_type": "afmoe", "global_attn_every_n_layers": 4, "head_dim": 128, "hidden_act": "silu", "hidden_size": 1024,
    "intermediate_size": 3072, "max_position_embeddings": 131072, "moe_intermediate_size": 256, "mup_enabled": True,
    "n_group": 1, "num_attention_heads": 8, "num_dense_layers": 2, "num_expert_groups": 1, "num_experts": 128,
    "num_experts_per_tok": 8, "num_hidden_layers": 56, "num_key_value_heads": 2, "num_limited_groups": 1,
    "num_shared_experts": 1, "rms_norm_eps": 1e-05, "rope_scaling": None, "rope_theta": 10000, "route_norm": True,
    "route_scale": 2.826, "score_func": "sigmoid", "sliding_window": 2048, "tie_word_embeddings": False,
    "topk_group": 1, "use_cache": True, "use_grouped_mm": True, "vocab_size": 200192,
}  # fmt: skip
PHI_3_5_MOE = {
    "model_type": "phimoe", "attention_bias": True, "hidden_act": "silu", "hidden_dropout": 0.0, "hidden_size": 4096,
    "input_jitter_noise": 0.01, "intermediate_size": 6400, "lm_head_bias": True, "max_position_embeddings": 131072,
    "num_attention_heads": 32, "num_experts_per_tok": 2, "num_hidden_layers": 32, "num_key_value_heads": 8,
    "num_local_experts": 16, "original_max_position_embeddings": 4096, "rms_norm_eps": 1e-05, "rope_theta": 10000.0,
    "rope_scaling": {"type": "longrope", "long_factor": [2.0] * 64, "short_factor": [1.0] * 64, "long_mscale": 1.243,
                     "short_mscale": 1.243, "original_max_position_embeddings": 4096},
    "router_aux_loss_coef": 0.0, "router_jitter_noise": 0.01, "sliding_window": 131072, "tie_word_embeddings": False,
    "vocab_size": 32064,
}  # fmt: skip


def mixture_of(spec: DecoderSpec) -> MoeSpec:
    feed_forward = spec.layers[-1].feed_forward
    assert isinstance(feed_forward, MoeSpec)
    return feed_forward


@pytest.mark.parametrize(
    ("fields", "look", "want"),
    [
        (GPT_OSS_20B, lambda s: (s.layers[0].attention.sliding_window, mixture_of(s).routing.top_k), (128, 4)),
        (GLM_4_5_AIR, lambda s: (s.unused, s.layers[0].attention.rope.dim), (("model.layers.46.",), 64)),
        (MINIMAX_M2, lambda s: (mixture_of(s).num_experts, s.layers[0].attention.rope.dim), (256, 64)),
        (GRANITE_1B_A400M, lambda s: (mixture_of(s).routing.top_k, s.head.logit_scale), (8, 1 / 6)),
        (TRINITY_NANO, lambda s: (s.embedding.scale, sum(each.rope is None for each in s.attentions)), (32.0, 14)),
        (PHI_3_5_MOE, lambda s: (s.max_position_embeddings, s.layers[0].attention.sliding_window), (4096, 131072)),
    ],
    ids=lambda item: item["model_type"] if isinstance(item, dict) else "",
)  # fmt: skip
def test_published_configs_are_understood(
    fields: dict[str, Any], look: Callable[[DecoderSpec], Any], want: tuple[Any, ...]
) -> None:
    assert look(decoder_spec(fields)) == want


def test_a_layer_without_a_number_of_experts_is_refused() -> None:
    sizes = {"hidden_size": 48, "intermediate_size": 36, "num_hidden_layers": 3, "num_attention_heads": 6}
    fields = {"model_type": "hunyuan_v1_moe", **sizes, "vocab_size": 67, "num_experts": 4}
    assert [layer.feed_forward.routing.top_k for layer in layers_of({**fields, "moe_topk": [1, 2, 3]})] == [1, 2, 3]
    with pytest.raises(SourceError) as caught:
        decoder_spec({**fields, "moe_topk": [1, 2]})
    assert str(caught.value) == "config.json: `moe_topk` has 2 entries for 3 layers"


def layers_of(fields: dict[str, Any]) -> tuple[Any, ...]:
    return decoder_spec(fields).layers
