"""Models with recurrent layers, and Gemma 3n and 4, that the tests write as GGUF files."""

from __future__ import annotations

import statistics
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from tests.unit.sources.gguf.sparse_cases import granite_shared_keys
from tests.unit.sources.gguf.stored_cases import (
    BY_NAME,
    Writer,
    changed,
    expert_keys,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support.decoder_case import Case


def lfm2_keys(writer: Writer) -> None:
    writer.add_head_count_kv([0, 2, 0, 0])
    writer.add_shortconv_l_cache(3)
    writer.add_layer_norm_rms_eps(1e-5)


def mamba_keys(writer: Writer, inner: int = 96, heads: int = 8) -> None:
    writer.add_ssm_conv_kernel(5)
    writer.add_ssm_inner_size(inner)
    writer.add_ssm_state_size(8)
    writer.add_ssm_time_step_rank(heads)
    writer.add_ssm_group_count(4)


def mamba2_keys(writer: Writer) -> None:
    mamba_keys(writer, 128)
    writer.add_context_length(2**20)
    writer.add_block_count(2)
    writer.add_feed_forward_length(0)
    writer.add_head_count(0)
    writer.add_key_length(0)
    writer.add_value_length(0)
    writer.add_layer_norm_rms_eps(1e-5)


def granite_hybrid_keys(writer: Writer) -> None:
    granite_shared_keys(writer)
    mamba_keys(writer)
    writer.add_head_count_kv([0, 2])
    writer.add_rope_dimension_count(8)
    writer.add_rope_freq_base(10000.0)
    writer.add_rope_scaling_finetuned(False)


def bamba_keys(writer: Writer) -> None:
    mamba_keys(writer)
    writer.add_head_count_kv([0, 2])
    writer.add_rope_dimension_count(4)
    writer.add_rope_scaling_finetuned(True)


def nemotron_keys(writer: Writer) -> None:
    mamba_keys(writer)
    writer.add_block_count(3)
    writer.add_head_count_kv([0, 0, 2])
    writer.add_expert_count(0)
    writer.add_expert_used_count(0)
    writer.add_feed_forward_length([0, 76, 0])
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_dimension_count(7)
    writer.add_rope_scaling_finetuned(False)


def nemotron_moe_keys(writer: Writer) -> None:
    nemotron_keys(writer)
    writer.add_feed_forward_length([36, 0, 0])
    writer.add_expert_count(6)
    writer.add_expert_used_count(2)
    expert_keys(writer)
    writer.add_expert_shared_feed_forward_length(52)
    writer.add_expert_shared_count(1)
    writer.add_expert_weights_norm(True)
    writer.add_expert_weights_scale(1.7)
    writer.add_expert_group_count(1)
    writer.add_expert_group_used_count(1)
    writer.add_moe_latent_size(28)


def delta_keys(writer: Writer, interval: int = 2) -> None:
    writer.add_ssm_conv_kernel(5)
    writer.add_ssm_state_size(16)
    writer.add_ssm_group_count(4)
    writer.add_ssm_time_step_rank(8)
    writer.add_ssm_inner_size(64)
    writer.add_full_attention_interval(interval)
    writer.add_rope_dimension_count(2)


def delta_expert_keys(writer: Writer) -> None:
    delta_keys(writer)
    expert_keys(writer)
    writer.add_expert_shared_feed_forward_length(52)


def qwen35_keys(writer: Writer) -> None:
    delta_keys(writer, 4)
    writer.add_rope_dimension_sections([11, 11, 10, 0])


def qwen35_expert_keys(writer: Writer) -> None:
    delta_expert_keys(writer)
    writer.add_rope_dimension_sections([11, 11, 10, 0])


def gemma3n_keys(writer: Writer) -> None:
    config = BY_NAME["gemma3n"].config
    writer.add_sliding_window(7)
    writer.add_final_logit_softcapping(30.0)
    writer.add_rope_freq_base(1e6)
    writer.add_altup_active_idx(0)
    writer.add_altup_num_inputs(4)
    writer.add_embedding_length_per_layer_input(6)
    writer.add_shared_kv_layers(2)
    writer.add_feed_forward_length(config["intermediate_size"])
    normal = statistics.NormalDist()
    shares = config["activation_sparsity_pattern"]
    writer.add_activation_sparsity_scale([normal.inv_cdf(share) if share else float("-inf") for share in shares])
    writer.add_sliding_window_pattern([index != 4 for index in range(7)])
    writer.add_rope_freq_base_swa(1e4)


def gemma4_keys(writer: Writer, name: str, heads: Any, slides: list[bool]) -> None:
    config = BY_NAME[name].config
    writer.add_sliding_window(7)
    writer.add_rope_freq_base(1e6)
    writer.add_rope_freq_base_swa(1e4)
    writer.add_shared_kv_layers(config.get("num_kv_shared_layers", 0))
    writer.add_embedding_length_per_layer_input(config["hidden_size_per_layer_input"])
    if "final_logit_softcapping" in config:
        writer.add_final_logit_softcapping(config["final_logit_softcapping"])
    writer.add_sliding_window_pattern(slides)
    for add, size in ((writer.add_key_length, 16), (writer.add_value_length, 16)):
        add(size)
    for add, size in ((writer.add_key_length_swa, 8), (writer.add_value_length_swa, 8)):
        add(size)
    writer.add_rope_dimension_count(16)
    writer.add_rope_dimension_count_swa(8)
    writer.add_head_count_kv(heads)
    writer.add_tensor("rope_freqs.weight", np.array([1.0] * 2 + [1e30] * 6, np.float32))
    if config.get("use_double_wide_mlp"):
        writer.add_feed_forward_length([76 if index < 6 else 152 for index in range(8)])
    if config.get("enable_moe_block"):
        expert_keys(writer)
        writer.add_expert_used_count(2)


def _gemma4(name: str, heads: Any, slides: list[bool]) -> tuple[str, Case, Callable[[Writer], None]]:
    return "GEMMA4", changed(name, global_head_dim=16), partial(gemma4_keys, name=name, heads=heads, slides=slides)


NEMOTRON = {"moe_latent_size": ..., "layers_block_type": ["linear_attention", "mlp", "full_attention"]}
RECURRENT_STORED = [
    ("LFM2", BY_NAME["lfm2"], lfm2_keys),
    ("MAMBA2", BY_NAME["mamba2"], mamba2_keys),
    ("GRANITE_HYBRID", changed("granitemoehybrid", position_embedding_type="nope"), granite_hybrid_keys),
    (
        "GRANITE_HYBRID",
        changed("granitemoehybrid", position_embedding_type="nope", num_local_experts=0),
        granite_hybrid_keys,
    ),
    ("GRANITE_HYBRID", BY_NAME["bamba"], bamba_keys),
    ("NEMOTRON_H", changed("nemotron_h", **NEMOTRON), nemotron_keys),
    (
        "NEMOTRON_H_MOE",
        changed("nemotron_h", layers_block_type=["moe", "linear_attention", "full_attention"]),
        nemotron_moe_keys,
    ),
    ("QWEN3NEXT", BY_NAME["qwen3_next"], delta_expert_keys),
    ("QWEN35", BY_NAME["qwen3_5"], qwen35_keys),
    ("QWEN35MOE", BY_NAME["qwen3_5_moe"], qwen35_expert_keys),
    ("GEMMA3N", BY_NAME["gemma3n"], gemma3n_keys),
    _gemma4("gemma4", 2, [index not in (5, 7) for index in range(8)]),
    _gemma4("gemma4-no-values", [2, 2, 1], [True, True, False]),
    _gemma4("gemma4-moe", 2, [True, True, False]),
]
OLDER_DELTA = ("QWEN3NEXT", BY_NAME["qwen3_next"], delta_expert_keys)
"""A model whose weights older converters did not take apart."""
FOLDED = (
    "FALCON_H1",
    changed("falcon_h1", mamba_norm_before_gate=False, mamba_proj_bias=False),
    lambda writer: mamba_keys(writer, 64),
)
"""A model whose factors the converter multiplies into its weights."""
