"""Models without experts that the tests write as GGUF files: the first ones, and recent ones."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.support.decoder_case import MPT_SIZES, YARN_ROPE, Case
from tests.unit.sources.gguf.stored_cases import (
    BY_NAME,
    LOCAL,
    Writer,
    changed,
    expert_keys,
    nothing,
    rotated,
    yarn_keys,
)

if TYPE_CHECKING:
    from collections.abc import Callable

YARN = {**YARN_ROPE, "original_max_position_embeddings": 16}


def falcon_keys(heads: int, groups: int) -> Callable[[Writer], None]:
    def add(writer: Writer) -> None:
        writer.add_tensor_data_layout("jploski")
        writer.add_feed_forward_length(192)
        writer.add_head_count(heads)
        writer.add_head_count_kv(groups)

    return add


def bloom_keys(writer: Writer) -> None:
    writer.add_context_length(48)
    writer.add_feed_forward_length(192)
    writer.add_head_count_kv(6)


def mpt_keys(clip: float | None) -> Callable[[Writer], None]:
    def add(writer: Writer) -> None:
        writer.add_block_count(2)
        writer.add_context_length(64)
        writer.add_embedding_length(48)
        writer.add_feed_forward_length(192)
        writer.add_head_count(6)
        writer.add_layer_norm_eps(1e-5)
        writer.add_max_alibi_bias(8.0)
        if clip is not None:
            writer.add_clamp_kqv(clip)

    return add


def starcoder_keys(writer: Writer) -> None:
    writer.add_feed_forward_length(192)
    writer.add_head_count_kv(1)


def olmo_keys(writer: Writer) -> None:
    writer.add_layer_norm_eps(1e-5)
    writer.add_clamp_kqv(0.3)


def olmo3_keys(writer: Writer) -> None:
    yarn_keys(writer)
    writer.add_rope_scaling_yarn_beta_fast(2.0)
    writer.add_rope_scaling_yarn_beta_slow(0.1)
    writer.add_rope_freq_base(100.0)
    writer.add_rope_freq_base_swa(50.0)
    writer.add_sliding_window(7)
    writer.add_sliding_window_pattern([False, True])


def apertus_keys(model_case: Case) -> Callable[[Writer], None]:
    """Return what adds the activation's numbers: those of the model."""
    from tests.support.decoders import model_of

    def add(writer: Writer) -> None:
        adders = {
            "alpha_n": writer.add_xielu_alpha_n, "alpha_p": writer.add_xielu_alpha_p, "beta": writer.add_xielu_beta,
            "eps": writer.add_xielu_eps,
        }  # fmt: skip
        for name, adder in adders.items():
            own = [f"model.layers.{index}.mlp.act_fn.{name}" for index in range(2)]
            adder([model_of(model_case).checkpoint[each].float().item() for each in own])

    return add


def mistral3_keys(weight: float) -> Callable[[Writer], None]:
    def add(writer: Writer) -> None:
        yarn_keys(writer)
        writer.add_rope_scaling_yarn_beta_fast(2.0)
        writer.add_rope_scaling_yarn_beta_slow(0.1)
        writer.add_rope_scaling_orig_ctx_len(4)
        writer.add_rope_scaling_yarn_log_mul(weight)
        writer.add_attn_temperature_scale(0.7)
        writer.add_rope_dimension_count(8)

    return add


def qwen_vl_keys(writer: Writer) -> None:
    writer.add_rope_dimension_sections([2, 1, 1, 0])
    writer.add_num_deepstack_layers(3)


def qwen_vl_expert_keys(writer: Writer) -> None:
    expert_keys(writer)
    qwen_vl_keys(writer)


MINISTRAL3 = changed(
    "ministral3",
    sliding_window=None,
    rope_parameters={**YARN, "llama_4_scaling_beta": 0.7, "original_max_position_embeddings": 4, "mscale": 1.0,
                     "mscale_all_dim": 0.8},
)  # fmt: skip
DENSE_STORED = [
    ("FALCON", BY_NAME["falcon-7b"], falcon_keys(6, 1)),
    ("FALCON", BY_NAME["falcon-40b"], falcon_keys(6, 2)),
    ("FALCON", changed("falcon-40b", num_ln_in_parallel_attn=1, bias=True), falcon_keys(6, 2)),
    ("BLOOM", BY_NAME["bloom"], bloom_keys),
    (
        "MPT",
        Case("mpt-clipped", "mpt", {**MPT_SIZES, "attn_config": {"clip_qkv": 0.4}}),
        mpt_keys(0.4),
    ),
    ("STARCODER", BY_NAME["gpt_bigcode"], starcoder_keys),
    ("OLMO", changed("olmo", attention_bias=False), olmo_keys),
    ("OLMO2", BY_NAME["olmo3"], olmo3_keys),
    ("CHATGLM", changed("glm", head_dim=8, hidden_size=48, rms_norm_eps=1e-5), rotated(4)),
    ("JAIS2", BY_NAME["jais2"], rotated(8)),
    ("APERTUS", changed("apertus", rope_parameters=LOCAL), apertus_keys(changed("apertus", rope_parameters=LOCAL))),
    ("MISTRAL3", MINISTRAL3, mistral3_keys(0.8)),
    ("MISTRAL3", changed("mistral", sliding_window=None), nothing),
    ("QWEN2VL", BY_NAME["qwen2"], qwen_vl_keys),
    ("QWEN3VL", BY_NAME["qwen3"], qwen_vl_keys),
    ("QWEN3VLMOE", BY_NAME["qwen3_moe"], qwen_vl_expert_keys),
]
