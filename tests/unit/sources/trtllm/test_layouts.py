"""Every architecture as TensorRT-LLM's scripts lay it out: config, weights and logits are those of transformers."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from tests.support.decoder_case import LONG_ROPE, Case
from tests.support.decoders import Model, model_of
from tests.unit.sources.gguf.stored_cases import BY_NAME, changed
from tests.unit.sources.gguf.test_architectures import IDS, check_logits
from tests.unit.sources.trtllm.layouts import BLOOM, GPT, MIXTURE, NEOX, OPT, PHI, PLAIN, ROTARY, Layout, write_trtllm
from trtkit.errors import TrtkitError
from trtkit.models.registry import decoder_spec
from trtkit.models.weights import find_weights
from trtkit.sources.decoder_source import open_trtllm

if TYPE_CHECKING:
    from pathlib import Path

    from trtkit.models.spec import DecoderSpec

SMALL = {"hidden_act": "silu", "norm_epsilon": 1e-6, "head_size": 8, "intermediate_size": 76}
LLAMA = Layout("", ROTARY, SMALL, 2)
TANH = {**SMALL, "hidden_act": "gelu_pytorch_tanh"}
GELU = {"hidden_act": "gelu", "norm_epsilon": 1e-5}
MOE = {"moe": {"num_experts": 5, "top_k": 2, "normalization_mode": 1}, "hidden_act": "swiglu", "norm_epsilon": 1e-5}
GRANITE = {
    "attention_multiplier": 0.5 * 4.0,
    "embedding_multiplier": 3.0,
    "residual_multiplier": 0.3,
    "output_multiplier_scale": 1 / 2.5,
}
LONG = {
    "position_embedding_type": "long_rope",
    "rotary_base": 100.0,
    "rotary_pct": 0.5,
    "original_max_position_embeddings": 48,
    "longrope_scaling_short_factors": LONG_ROPE["short_factor"],
    "longrope_scaling_long_factors": LONG_ROPE["long_factor"],
}
NEOX_LAYOUT = Layout("GPTNeoXForCausalLM", NEOX, {"hidden_act": "gelu", "intermediate_size": 76}, 2, is_grouped=True)
GPT2_LIKE = Layout("", GPT, GELU, 2, has_copy=True)
FALCON = Layout("FalconForCausalLM", BLOOM, {**GELU, "parallel_attention": True}, 2, has_copy=True, is_grouped=True)
ALIBI = {"position_embedding_type": "alibi"}
MPT_CLIPPED = {"hidden_act": "gelu", "norm_epsilon": 1e-5, "clip_qkv": 0.3, "alibi_bias_max": 8, **ALIBI}
POST_NORM = changed("opt", do_layer_norm_before=False, activation_function="gelu", ffn_dim=192)
STORED: list[tuple[Case, Layout]] = [
    (
        changed("mistral", sliding_window=None, intermediate_size=78),
        Layout("MistralForCausalLM", ROTARY, {**SMALL, "intermediate_size": 78}, 6),
    ),
    (
        BY_NAME["mixtral"],
        Layout(
            "MixtralForCausalLM",
            ROTARY,
            {**SMALL, **MOE, "rotary_base": 1e6},
            2,
            experts=("block_sparse_moe.experts", "w1", "w3", "w2"),
        ),
    ),
    (
        changed("granite", head_dim=..., num_attention_heads=3, num_key_value_heads=1, attention_multiplier=0.5),
        Layout("GraniteForCausalLM", ROTARY, {**SMALL, **GRANITE, "head_size": 16}),
    ),
    (changed("qwen3", tie_word_embeddings=False), replace(LLAMA, architecture="Qwen3ForCausalLM")),
    (BY_NAME["qwen3"], replace(LLAMA, architecture="Qwen3ForCausalLM")),
    (
        changed("qwen2_moe", mlp_only_layers=[]),
        Layout(
            "Qwen2MoeForCausalLM",
            MIXTURE,
            {
                "hidden_act": "swiglu",
                "norm_epsilon": 1e-6,
                "intermediate_size": 76,
                "moe": {**MOE["moe"], "normalization_mode": 0},
                "moe_intermediate_size": 36,
                "moe_shared_expert_intermediate_size": 52,
            },
            2,
        ),
    ),
    (
        BY_NAME["qwen3_moe"],
        Layout("Qwen3MoeForCausalLM", MIXTURE, {**SMALL, **MOE, "norm_epsilon": 1e-6, "moe_intermediate_size": 36}, 2),
    ),
    (
        changed("gemma3", num_hidden_layers=4, layer_types=None, sliding_window_pattern=2),
        Layout(
            "Gemma3ForCausalLM",
            ROTARY,
            {
                **TANH,
                "inter_layernorms": True,
                "query_pre_attn_scalar": 12,
                "sliding_window": 7,
                "_sliding_window_pattern": 2,
                "rotary_base": 1e6,
                "rope_local_base_freq": 1e4,
            },
            2,
            plus_one=True,
        ),
    ),
    (BY_NAME["gemma"], Layout("GemmaForCausalLM", ROTARY, TANH, 2, has_copy=True, plus_one=True)),
    (
        changed("gemma2", sliding_window=4096, final_logit_softcapping=30.0),
        Layout(
            "Gemma2ForCausalLM",
            ROTARY,
            {
                **TANH,
                "inter_layernorms": True,
                "query_pre_attn_scalar": 12,
                "final_logit_softcapping": 30.0,
                "attn_logit_softcapping": 5.0,
            },
            2,
            plus_one=True,
        ),
    ),
    (
        changed("starcoder2", sliding_window=None, tie_word_embeddings=False),
        Layout("Starcoder2ForCausalLM", PLAIN, {**TANH, "norm_epsilon": 1e-5}, 2),
    ),
    (
        BY_NAME["nemotron"],
        Layout(
            "NemotronForCausalLM",
            PLAIN,
            {**SMALL, "hidden_act": "squared-relu", "norm_epsilon": 1e-5, "rotary_base": 100.0, "rotary_pct": 0.25},
            2,
            plus_one=True,
        ),
    ),
    (
        changed("phi", qk_layernorm=False),
        Layout("PhiForCausalLM", PHI, {"hidden_act": "gelu_new", "intermediate_size": 76, "rotary_pct": 0.5}, 2),
    ),
    (
        changed("phi3", sliding_window=None, original_max_position_embeddings=48),
        Layout("Phi3ForCausalLM", PHI, {**SMALL, **LONG, "norm_epsilon": 1e-5, "head_size": None}),
    ),
    (
        BY_NAME["cohere"],
        Layout(
            "CohereForCausalLM",
            ROTARY,
            {**SMALL, "norm_epsilon": 1e-5, "output_multiplier_scale": 0.3, "qk_layernorm": True, "rotary_base": 5e5},
            2,
        ),
    ),
    (BY_NAME["gpt_neox"], replace(NEOX_LAYOUT, config={**NEOX_LAYOUT.config, "rotary_pct": 0.25})),
    (
        changed("gptj", tie_word_embeddings=False),
        Layout("GPTJForCausalLM", GPT, {**GELU, "rotary_dim": 6, "position_embedding_type": "rope_gptj"}, 2),
    ),
    (BY_NAME["bloom"], replace(FALCON, architecture="BloomForCausalLM", config={**GELU, **ALIBI})),
    (BY_NAME["opt"], Layout("OPTForCausalLM", OPT, {"hidden_act": "relu", "intermediate_size": 76}, 2, has_copy=True)),
    (POST_NORM, Layout("OPTForCausalLM", OPT, {"hidden_act": "gelu", "do_layer_norm_before": False}, 2)),
    (BY_NAME["falcon-7b"], FALCON),
    (BY_NAME["falcon-40b"], replace(FALCON, config={**FALCON.config, "new_decoder_architecture": True})),
    (BY_NAME["falcon-sequential"], replace(FALCON, config=GELU)),
    (
        BY_NAME["falcon-alibi"],
        replace(FALCON, config={**FALCON.config, "position_embedding_type": "alibi_with_scale"}),
    ),
    (
        changed("mpt", attn_config={"clip_qkv": 0.3}),
        replace(GPT2_LIKE, architecture="MPTForCausalLM", config=MPT_CLIPPED),
    ),
    (BY_NAME["gpt_bigcode"], replace(GPT2_LIKE, architecture="GPTBigCodeForCausalLM")),
]


def wanted(model: Model, layout: Layout) -> tuple[dict[str, np.ndarray], DecoderSpec]:
    """Return weights and spec of a model; with a head of its own where the scripts copy the embedding."""
    weights = {name: tensor.numpy() for name, tensor in model.checkpoint.items()}
    if not layout.has_copy:
        return weights, model.spec
    weights[model.spec.names["lm_head"] + ".weight"] = weights[model.spec.names["embedding"] + ".weight"]
    return weights, decoder_spec({**model.config, "tie_word_embeddings": False})


@pytest.mark.parametrize(("model_case", "layout"), STORED, ids=lambda item: getattr(item, "architecture", str(item)))
def test_weights_and_config_are_those_of_transformers(model_case: Case, layout: Layout, tmp_path: Path) -> None:
    model = model_of(model_case)
    opened, (weights, spec) = open_trtllm(write_trtllm(tmp_path, model, layout)), wanted(model, layout)
    assert decoder_spec(opened.config) == spec
    assert set(opened.checkpoint) == set(weights)
    for name, want in weights.items():
        skipped = 2 if "embed_positions" in name else 0
        got = opened.checkpoint[name]
        np.testing.assert_allclose(got[skipped:], want[skipped:], rtol=0, atol=2e-7 * layout.plus_one, err_msg=name)
        assert opened.checkpoint.shape_of(name) == want.shape  # type: ignore[attr-defined]
    assert len(find_weights(spec, opened.checkpoint)) > 10


@pytest.mark.parametrize(("model_case", "layout"), STORED, ids=lambda item: getattr(item, "architecture", str(item)))
def test_logits_are_those_of_transformers(model_case: Case, layout: Layout, tmp_path: Path) -> None:
    model = model_of(model_case)
    check_logits(open_trtllm(write_trtllm(tmp_path, model, layout)), model.logits(IDS))


REFUSED: list[tuple[str, dict[str, Any], str]] = [
    (
        "Qwen3MoeForCausalLM",
        {"moe": {"num_experts": 5, "top_k": 2, "normalization_mode": 0}},
        "`moe.normalization_mode` is `0`",
    ),
    (
        "MixtralForCausalLM",
        {"moe": {"num_experts": 5, "top_k": 2, "normalization_mode": 2}},
        "`moe.normalization_mode` is `2`",
    ),
    ("MixtralForCausalLM", {"moe": {"num_experts": 5, "normalization_mode": 1}}, "`moe.top_k` is missing"),
    (
        "MixtralForCausalLM",
        {"mapping": {"tp_size": 2, "pp_size": 1, "moe_ep_size": 2}},
        "`mapping.moe_ep_size` is `2`: write the checkpoint with `moe_ep_size` 1",
    ),
    ("Phi3ForCausalLM", {"mapping": {"tp_size": 2}}, "`mapping.tp_size` is `2`: write the checkpoint with `tp_size` 1"),
    ("GPTBigCodeForCausalLM", {"num_key_value_heads": 6}, "`num_key_value_heads` is `6`"),
    ("GraniteForCausalLM", {"residual_multiplier": None}, "`residual_multiplier` is missing"),
    ("MistralForCausalLM", {"residual_multiplier": 0.5}, "`residual_multiplier` is `0.5`"),
    ("GemmaForCausalLM", {"attn_logit_softcapping": 50.0}, "`attn_logit_softcapping` is `50.0`"),
    ("CohereForCausalLM", {"position_embedding_type": "rope_gpt_neox"}, "`position_embedding_type` is `rope_gpt_neox`"),
    ("FalconForCausalLM", {"hidden_act": "relu"}, "`hidden_act` is `relu`"),
    ("Qwen3ForCausalLM", {"use_logn_attn": True}, "`use_logn_attn` is `True`"),
    (
        "Gemma3ForCausalLM",
        {"num_hidden_layers": 34},
        "`rotary_scaling` is missing, which Gemma 3 of 34 layers has: build from the original checkpoint",
    ),
]


@pytest.mark.parametrize(("architecture", "fields", "message"), REFUSED)
def test_what_changes_the_result_and_is_not_read_is_named(
    architecture: str, fields: dict[str, Any], message: str, tmp_path: Path
) -> None:
    model_case, layout = next(item for item in STORED if item[1].architecture == architecture)
    write_trtllm(tmp_path, model_of(model_case), layout)
    path = tmp_path / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))
    with pytest.raises(TrtkitError) as caught:
        open_trtllm(tmp_path)
    assert str(caught.value) == f"this TensorRT-LLM checkpoint is not supported\n  {path}: {message}"
