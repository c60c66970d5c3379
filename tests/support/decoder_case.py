"""Building blocks of decoder cases: the dataclass, common sizes, rotary embeddings, experts."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Case:
    """A tiny model with random weights. config: arguments of `AutoConfig.for_model` besides `model_type`.

    attention: the attention implementation of transformers to compare with.
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
    """Return a case with SIZES and `changes`. without: fields that the family lacks."""
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
LATENT_YARN = {**YARN_ROPE, "mscale": 0.7, "mscale_all_dim": 1.3}
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
ROUTED = {"moe_intermediate_size": 36, "n_routed_experts": 6, "num_experts_per_tok": 3}
SCALED = {
    "embedding_multiplier": 3.0,
    "logits_scaling": 2.5,
    "residual_multiplier": 0.3,
    "attention_multiplier": 0.2,
}
GRANITE = {"num_local_experts": 5, "num_experts_per_tok": 2, "attention_bias": True, **SCALED}
GPT2_SIZES = {"vocab_size": 67, "n_positions": 64, "n_embd": 48, "n_layer": 2, "n_head": 6, "bos_token_id": 1}
XGLM_SIZES = {
    "vocab_size": 67,
    "d_model": 48,
    "ffn_dim": 76,
    "num_layers": 2,
    "attention_heads": 6,
    "max_position_embeddings": 64,
    "pad_token_id": 5,  # zeroes the embedding of position 3
}
LATENT = {
    "num_key_value_heads": None,
    "kv_lora_rank": 18,
    "q_lora_rank": 28,
    "qk_nope_head_dim": 10,
    "qk_rope_head_dim": 6,
    "v_head_dim": 14,
}
MPT_SIZES = {"vocab_size": 67, "max_seq_len": 64, "d_model": 48, "n_layers": 2, "n_heads": 6}
NO_HEAD_DIM = ("head_dim",)
NO_GROUPS = ("head_dim", "num_key_value_heads")
NO_SIZE = (*NO_GROUPS, "intermediate_size")
