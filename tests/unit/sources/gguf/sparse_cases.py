"""Mixtures of experts and models with latent attention that the tests write as GGUF files."""

from __future__ import annotations

import gguf
import numpy as np

from tests.support.decoder_case import YARN_ROPE
from tests.unit.sources.gguf.stored_cases import (
    BY_NAME,
    LOCAL,
    Writer,
    changed,
    expert_keys,
    granite_keys,
    routed_keys,
    yarn_keys,
)

YARN = {**YARN_ROPE, "original_max_position_embeddings": 16}
LATENT_YARN = {**YARN, "mscale": 0.7, "mscale_all_dim": 0.7}
LLAMA4_ROPE = {
    "rope_type": "llama3", "rope_theta": 1e6, "factor": 16.0, "low_freq_factor": 1.0, "high_freq_factor": 1.0,
    "original_max_position_embeddings": 8192,
}  # fmt: skip


def ernie_keys(writer: Writer) -> None:
    writer.add_expert_count(5)
    writer.add_expert_used_count(2)
    writer.add_interleave_moe_layer_step(1)
    writer.add_leading_dense_block_count(1)
    writer.add_expert_feed_forward_length(40)
    writer.add_expert_shared_count(2)
    writer.add_expert_shared_feed_forward_length(38)


def hunyuan_keys(writer: Writer) -> None:
    writer.add_expert_shared_feed_forward_length(76)
    writer.add_expert_feed_forward_length(76)
    writer.add_expert_used_count(2)
    writer.add_expert_shared_count(1)


def hunyuan_alpha_keys(writer: Writer) -> None:
    """Add the base that the converter computes from `alpha`."""
    hunyuan_keys(writer)
    writer.add_rope_freq_base(10.0 * 50.0 ** (8 / 6))
    writer.add_rope_scaling_type(gguf.RopeScalingType.NONE)
    writer.add_rope_scaling_factor(1)
    writer.add_rope_scaling_orig_ctx_len(256 * 1024)


def minimax_keys(writer: Writer) -> None:
    writer.add_expert_feed_forward_length(76)
    writer.add_rope_dimension_count(4)
    writer.add_expert_gating_func(gguf.ExpertGatingFuncType.SIGMOID)


def exaone_moe_keys(writer: Writer) -> None:
    routed_keys(writer)
    writer.add_expert_shared_count(1)
    writer.add_expert_shared_feed_forward_length(36)
    writer.add_expert_group_count(2)
    writer.add_expert_group_used_count(1)
    writer.add_expert_weights_scale(2.5)
    writer.add_leading_dense_block_count(1)
    writer.add_sliding_window(7)
    writer.add_sliding_window_pattern([True, True, True, False])
    writer.add_rope_scaling_type(gguf.RopeScalingType.NONE)


def granite_shared_keys(writer: Writer) -> None:
    granite_keys(writer)
    writer.add_expert_shared_feed_forward_length(52)


def phimoe_keys(writer: Writer) -> None:
    writer.add_rope_dimension_count(8)
    writer.add_rope_scaling_orig_ctx_len(64)
    writer.add_sliding_window(0)


def llama4_keys(writer: Writer) -> None:
    writer.add_interleave_moe_layer_step(2)
    writer.add_expert_feed_forward_length(76)
    writer.add_feed_forward_length(52)
    writer.add_rope_dimension_count(8)
    divisors = [1.0 if 2 * np.pi * 1e6 ** (pair / 4) <= 8192 else 16.0 for pair in range(4)]
    assert len(set(divisors)) == 2
    writer.add_tensor("rope_freqs.weight", np.array(divisors, np.float32))


def latent_keys(writer: Writer, *, rank: int | None = 28, weight: float | None = 0.07) -> None:
    writer.add_head_count_kv(1)
    writer.add_key_length(18 + 6)
    writer.add_value_length(18)
    writer.add_key_length_mla(16)
    writer.add_value_length_mla(14)
    writer.add_kv_lora_rank(18)
    if rank is not None:
        writer.add_q_lora_rank(rank)
    writer.add_rope_dimension_count(6)
    if weight is not None:
        yarn_keys(writer)
        writer.add_rope_scaling_yarn_beta_fast(2.0)
        writer.add_rope_scaling_yarn_beta_slow(0.1)
        writer.add_rope_scaling_yarn_log_mul(weight)


def youtu_keys(writer: Writer) -> None:
    latent_keys(writer)
    writer.add_leading_dense_block_count(2)
    writer.add_expert_feed_forward_length(76)
    writer.add_expert_shared_count(0)


def deepseek_v2_keys(writer: Writer) -> None:
    latent_keys(writer)
    expert_keys(writer)
    writer.add_leading_dense_block_count(1)
    writer.add_expert_shared_count(2)
    writer.add_expert_weights_scale(1.7)
    writer.add_expert_group_count(3)
    writer.add_expert_group_used_count(2)
    writer.add_expert_gating_func(gguf.ExpertGatingFuncType.SOFTMAX)


def deepseek_lite_keys(writer: Writer) -> None:
    latent_keys(writer, rank=None, weight=None)
    expert_keys(writer)
    writer.add_leading_dense_block_count(0)
    writer.add_expert_shared_count(1)
    writer.add_expert_weights_scale(1.0)
    writer.add_rope_freq_base(10000.0)


def deepseek_v3_keys(writer: Writer) -> None:
    latent_keys(writer)
    routed_keys(writer)
    writer.add_leading_dense_block_count(1)
    writer.add_expert_shared_count(1)
    writer.add_expert_weights_scale(2.5)
    writer.add_expert_group_count(3)
    writer.add_expert_group_used_count(2)


def older_deepseek_keys(writer: Writer) -> None:
    """Add what files of before May 2025 say: sizes of heads are those of keys and values themselves."""
    expert_keys(writer)
    writer.add_key_length(16)
    writer.add_value_length(14)
    writer.add_kv_lora_rank(18)
    writer.add_rope_dimension_count(6)
    writer.add_leading_dense_block_count(0)
    writer.add_expert_shared_count(1)
    writer.add_expert_weights_scale(1.0)


def glm_lite_keys(writer: Writer) -> None:
    latent_keys(writer, weight=None)
    expert_keys(writer)
    writer.add_expert_weights_norm(True)
    writer.add_leading_dense_block_count(1)
    writer.add_expert_shared_count(1)
    writer.add_expert_weights_scale(1.8)
    writer.add_expert_group_count(2)
    writer.add_expert_group_used_count(2)


def minicpm3_keys(writer: Writer) -> None:
    writer.add_head_count_kv(6)
    writer.add_q_lora_rank(28)
    writer.add_kv_lora_rank(18)
    writer.add_key_length(16)
    writer.add_rope_dimension_count(6)


def minicpm3_long_keys(writer: Writer) -> None:
    minicpm3_keys(writer)
    for kind, factors in (("long", [1.0, 3.0, 6.0]), ("short", [1.0, 1.5, 2.0])):
        writer.add_tensor(f"rope_factors_{kind}.weight", np.array(factors, np.float32))


PUBLISHED_MINICPM3 = {"scale_emb": 12, "scale_depth": 1.4, "dim_model_base": 256}
MINICPM3 = changed("minicpm3", **PUBLISHED_MINICPM3)
LONG = {
    "rope_type": "longrope", "rope_theta": 10000.0, "short_factor": [1.0, 1.5, 2.0], "long_factor": [1.0, 3.0, 6.0],
    "original_max_position_embeddings": 64,
}  # fmt: skip
SPARSE_STORED = [
    ("ERNIE4_5_MOE", changed("ernie4_5_moe", moe_norm_min=..., moe_layer_end_index=...), ernie_keys),
    ("HUNYUAN_MOE", changed("hunyuan_v1_moe", num_experts_per_tok=[2, 2], rope_parameters=LOCAL), hunyuan_keys),
    ("MINIMAXM2", BY_NAME["minimax_m2"], minimax_keys),
    ("EXAONE_MOE", BY_NAME["exaone_moe"], exaone_moe_keys),
    ("GRANITE_MOE", BY_NAME["granitemoeshared"], granite_shared_keys),
    ("PHIMOE", changed("phimoe", router_jitter_noise=0.01), phimoe_keys),
    (
        "LLAMA4",
        changed("llama4", attention_chunk_size=8192, floor_scale=8192, attn_scale=0.1, rope_parameters=LLAMA4_ROPE),
        llama4_keys,
    ),
    ("DEEPSEEK2", changed("youtu", rope_parameters=LATENT_YARN), youtu_keys),
    ("DEEPSEEK2", changed("deepseek_v2", rope_parameters=LATENT_YARN), deepseek_v2_keys),
    ("DEEPSEEK2", BY_NAME["deepseek_v2-lite"], deepseek_lite_keys),
    ("DEEPSEEK2", changed("deepseek_v3", rope_parameters=LATENT_YARN), deepseek_v3_keys),
    ("MINICPM3", MINICPM3, minicpm3_keys),
    ("MINICPM3", changed("minicpm3", **PUBLISHED_MINICPM3, rope_parameters=LONG), minicpm3_long_keys),
]
OLDER_LATENT = ("DEEPSEEK2", BY_NAME["deepseek_v2-lite"], older_deepseek_keys)
"""A model whose weights older converters did not take apart."""
# Models that a file does not name: they are read as others that compute the same.
ALIKE = [
    ("DEEPSEEK2", BY_NAME["glm4_moe_lite"], glm_lite_keys),
    ("HUNYUAN_MOE", changed("hunyuan_v1_moe", num_experts_per_tok=[2, 2]), hunyuan_alpha_keys),
]
