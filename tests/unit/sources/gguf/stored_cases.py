"""Models that the tests write as GGUF files, and the metadata that each needs beyond its sizes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import gguf
import numpy as np

from tests.support.decoder_case import EXPERTS, LONG_ROPE, NO_HEAD_DIM, ROUTED, Case, case
from tests.support.decoder_cases import CASES

if TYPE_CHECKING:
    from collections.abc import Callable


Writer = gguf.GGUFWriter
BY_NAME = {str(item): item for item in CASES}
LINEAR = {"rope_type": "linear", "rope_theta": 1e6, "factor": 8.0}
LOCAL = {"rope_type": "default", "rope_theta": 1e4}
LLAMA3 = {
    "rope_type": "llama3", "rope_theta": 1e6, "factor": 32.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}  # fmt: skip
YARN = {"rope_type": "yarn", "rope_theta": 100.0, "factor": 4.0, "original_max_position_embeddings": 16}


def changed(name: str, **changes: Any) -> Case:
    """Return a case with other fields; None leaves one out."""
    base = BY_NAME[name]
    config = {key: value for key, value in {**base.config, **changes}.items() if value is not ...}
    return Case(f"{name}-stored", base.model_type, config, base.attention)


def bitnet_keys(writer: Writer) -> None:
    writer.add_string("bitnet.hidden_act", "relu2")


def granite_keys(writer: Writer) -> None:
    writer.add_attention_scale(0.2)
    writer.add_embedding_scale(3.0)
    writer.add_residual_scale(0.3)
    writer.add_logit_scale(2.5)


def gemma2_keys(writer: Writer) -> None:
    writer.add_sliding_window(7)
    writer.add_attn_logit_softcapping(5.0)
    writer.add_final_logit_softcapping(30.0)


def gemma3_keys(writer: Writer) -> None:
    writer.add_sliding_window(7)
    writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
    writer.add_rope_scaling_factor(8.0)


def llama3_keys(writer: Writer) -> None:
    """Add the divisors that llama.cpp's converter computes from Llama 3's constants."""
    divisors = []
    for pair in range(4):
        wavelength = 2 * np.pi * 1e6 ** (pair / 4)
        smooth = min(max((8192 / wavelength - 1) / 3, 0), 1)
        divisors.append(1 / ((1 - smooth) / 32 + smooth))
    assert len(set(divisors)) == 3  # untouched, in between, and stretched frequencies
    writer.add_tensor("rope_freqs.weight", np.array(divisors, np.float32))


def yarn_keys(writer: Writer) -> None:
    writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
    writer.add_rope_scaling_factor(4.0)
    writer.add_rope_scaling_orig_ctx_len(16)


def longrope_keys(writer: Writer) -> None:
    writer.add_rope_dimension_count(6)
    writer.add_rope_scaling_type(gguf.RopeScalingType.LONGROPE)
    writer.add_rope_scaling_orig_ctx_len(48)
    writer.add_rope_scaling_attn_factors(float(np.sqrt(1 + np.log(64 / 48) / np.log(48))))
    writer.add_sliding_window(7)
    for kind in ("long", "short"):
        writer.add_tensor(f"rope_factors_{kind}.weight", np.array(LONG_ROPE[f"{kind}_factor"], np.float32))


def expert_keys(writer: Writer) -> None:
    writer.add_expert_feed_forward_length(36)


def shared_expert_keys(writer: Writer) -> None:
    expert_keys(writer)
    writer.add_expert_shared_feed_forward_length(52)


def rotated(count: int, is_parallel: bool | None = None) -> Callable[[Writer], None]:
    """Return what adds the rotated size and, where it is a choice, how attention and MLP stand."""

    def add(writer: Writer) -> None:
        writer.add_rope_dimension_count(count)
        if is_parallel is not None:
            writer.add_parallel_residual(is_parallel)

    return add


def cohere2_keys(writer: Writer) -> None:
    writer.add_logit_scale(0.3)
    writer.add_sliding_window(7)
    writer.add_rope_dimension_count(8)
    writer.add_rope_scaling_type(gguf.RopeScalingType.NONE)


def exaone4_keys(writer: Writer) -> None:
    writer.add_sliding_window(7)
    writer.add_sliding_window_pattern([True, False, True])


def nemotron_keys(writer: Writer) -> None:
    writer.add_layer_norm_eps(1e-5)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_dimension_count(2)
    writer.add_rope_scaling_type(gguf.RopeScalingType.NONE)


def gpt_oss_keys(writer: Writer) -> None:
    yarn_keys(writer)
    writer.add_sliding_window(7)
    writer.add_expert_feed_forward_length(64)


def routed_keys(writer: Writer) -> None:
    expert_keys(writer)
    writer.add_expert_gating_func(gguf.ExpertGatingFuncType.SIGMOID)
    writer.add_expert_weights_norm(True)


def glm4_moe_keys(writer: Writer) -> None:
    routed_keys(writer)
    writer.add_rope_dimension_count(4)
    writer.add_expert_shared_count(2)
    writer.add_leading_dense_block_count(1)
    writer.add_expert_group_count(3)
    writer.add_expert_group_used_count(2)
    writer.add_expert_weights_scale(1.7)


def dots1_keys(writer: Writer) -> None:
    routed_keys(writer)
    writer.add_expert_shared_count(1)
    writer.add_leading_dense_block_count(0)


def nothing(writer: Writer) -> None:
    """Add no keys but those that all models have."""


GPT_OSS = case(
    "gpt_oss", "gpt_oss", hidden_size=64, intermediate_size=64, num_local_experts=5, num_experts_per_tok=2,
    sliding_window=7, rope_parameters={**YARN, "truncate": False},
)  # fmt: skip
DOTS1 = case("dots1", "dots1", sliding_window=None, n_shared_experts=1, norm_topk_prob=True, **ROUTED)
# Models whose config says nothing that the file cannot.
STORED = [
    ("LLAMA", BY_NAME["llama"], rotated(8)),
    ("LLAMA", BY_NAME["llama-biases"], nothing),
    ("LLAMA", case("llama-3", "llama", tie_word_embeddings=True, rope_parameters=LLAMA3), llama3_keys),
    ("LLAMA", BY_NAME["mixtral"], nothing),
    ("QWEN2", BY_NAME["qwen2"], nothing),
    ("QWEN2", case("qwen2-yarn", "qwen2", *NO_HEAD_DIM, hidden_size=48, rope_parameters=YARN), yarn_keys),
    (
        "QWEN2MOE",
        case("qwen2_moe", "qwen2_moe", *NO_HEAD_DIM, hidden_size=48, **EXPERTS, shared_expert_intermediate_size=52),
        shared_expert_keys,
    ),
    ("QWEN3", BY_NAME["qwen3"], nothing),
    ("QWEN3MOE", BY_NAME["qwen3_moe"], expert_keys),
    ("GEMMA", BY_NAME["gemma"], nothing),
    (
        "GEMMA2",
        case("gemma2", "gemma2", query_pre_attn_scalar=8, sliding_window=7, attn_logit_softcapping=5.0),
        gemma2_keys,
    ),
    (
        "GEMMA3",
        case(
            "gemma3",
            "gemma3_text",
            query_pre_attn_scalar=8,
            sliding_window=7,
            num_hidden_layers=7,
            rope_parameters={"full_attention": LINEAR, "sliding_attention": LOCAL},
        ),
        gemma3_keys,
    ),
    ("GPT2", Case("gpt2", "gpt2", {**BY_NAME["gpt2"].config, "n_inner": 76}), nothing),
    ("PHI2", case("phi", "phi", *NO_HEAD_DIM, hidden_size=48), rotated(4)),
    ("PHI3", Case("phi3", "phi3", {**BY_NAME["phi3"].config, "original_max_position_embeddings": 48}), longrope_keys),
    ("STARCODER2", case("starcoder2", "starcoder2", *NO_HEAD_DIM, hidden_size=48, sliding_window=None), nothing),
    ("STABLELM", BY_NAME["stablelm"], rotated(4, False)),
    ("STABLELM", BY_NAME["stablelm-parallel"], rotated(4, True)),
    ("OLMO2", BY_NAME["olmo2"], nothing),
    ("GRANITE", BY_NAME["granite"], granite_keys),
    ("COMMAND_R", BY_NAME["cohere"], lambda writer: writer.add_logit_scale(0.3)),
    ("SMOLLM3", case("smollm3", "smollm3", *NO_HEAD_DIM, hidden_size=48, num_hidden_layers=5), nothing),
    ("SEED_OSS", BY_NAME["seed_oss"], nothing),
    ("ARCEE", case("arcee", "arcee", head_dim=10, tie_word_embeddings=True), rotated(10)),
    (
        "BITNET",
        case("bitnet-silu", "bitnet", *NO_HEAD_DIM, hidden_size=48, hidden_act="silu", tie_word_embeddings=True),
        nothing,
    ),
    (
        "BITNET",
        case("bitnet", "bitnet", *NO_HEAD_DIM, hidden_size=48, hidden_act="relu2", tie_word_embeddings=True),
        bitnet_keys,
    ),
    ("OLMOE", case("olmoe", "olmoe", *NO_HEAD_DIM, hidden_size=48, num_experts=5, num_experts_per_tok=2), nothing),
    ("GLM4", case("glm4", "glm4", attention_bias=True), rotated(4)),
    ("COHERE2", BY_NAME["cohere2"], cohere2_keys),
    ("EXAONE4", BY_NAME["exaone4"], exaone4_keys),
    ("EXAONE4", BY_NAME["exaone4-global"], nothing),
    ("ERNIE4_5", BY_NAME["ernie4_5"], nothing),
    ("NEMOTRON", BY_NAME["nemotron"], nemotron_keys),
    ("HUNYUAN_DENSE", case("hunyuan", "hunyuan_v1_dense"), nothing),
    ("GPT_OSS", GPT_OSS, gpt_oss_keys),
    ("GLM4_MOE", BY_NAME["glm4_moe"], glm4_moe_keys),
    ("DOTS1", DOTS1, dots1_keys),
    ("GRANITE_MOE", BY_NAME["granitemoe"], granite_keys),
    ("GPTNEOX", BY_NAME["gpt_neox"], rotated(2, True)),
    ("GPTNEOX", BY_NAME["gpt_neox-sequential"], rotated(2, False)),
]
