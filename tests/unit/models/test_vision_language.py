"""Published config.json of vision-language models: what they leave out, and what else stands in them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from tests.support.decoders import rtx
from trtkit.errors import NetworkError, SourceError
from trtkit.models.parallel import Grid, rank_spec
from trtkit.models.registry import decoder_spec
from trtkit.models.vision_language.registry import image_traits, vision_spec
from trtkit.models.vision_language.spec import VisionLimits
from trtkit.network.decoder import build_decoder
from trtkit.network.decoder_options import DecoderOptions
from trtkit.network.graph import Graph
from trtkit.sources.checkpoint import StoredArray
from trtkit.sources.huggingface.wrapped_config import text_fields, unwrap
from trtkit.sources.vision_language.load import whole_config

if TYPE_CHECKING:
    from pathlib import Path

LLAVA = {
    "architectures": ["LlavaForConditionalGeneration"],
    "ignore_index": -100,
    "image_token_index": 32000,
    "model_type": "llava",
    "pad_token_id": 32001,
    "projector_hidden_act": "gelu",
    "text_config": {
        "_name_or_path": "lmsys/vicuna-7b-v1.5",
        "architectures": ["LlamaForCausalLM"],
        "max_position_embeddings": 4096,
        "model_type": "llama",
        "rms_norm_eps": 1e-05,
        "torch_dtype": "float16",
        "vocab_size": 32064,
    },
    "tie_word_embeddings": False,
    "torch_dtype": "float16",
    "vision_config": {
        "hidden_size": 1024,
        "image_size": 336,
        "intermediate_size": 4096,
        "model_type": "clip_vision_model",
        "num_attention_heads": 16,
        "num_hidden_layers": 24,
        "patch_size": 14,
        "projection_dim": 768,
        "vocab_size": 32000,
    },
    "vision_feature_layer": -2,
    "vision_feature_select_strategy": "default",
    "vocab_size": 32064,
}
SMOLVLM = {
    "architectures": ["Idefics3ForConditionalGeneration"],
    "image_token_id": 49190,
    "model_type": "idefics3",
    "scale_factor": 4,
    "text_config": {
        "_flash_attn_2_enabled": True,
        "architectures": ["VLlama3ForCausalLM"],
        "head_dim": 64,
        "hidden_size": 576,
        "intermediate_size": 1536,
        "is_llama_config": True,
        "max_position_embeddings": 8192,
        "model_type": "llama",
        "neftune_noise_alpha": 0.0,
        "num_attention_heads": 9,
        "num_hidden_layers": 30,
        "num_key_value_heads": 3,
        "pad_token_id": 2,
        "perceiver_config": {"model_type": "vllama3", "resampler_depth": 6},
        "pixel_shuffle_factor": 4,
        "qk_layer_norms": False,
        "rms_norm_eps": 1e-05,
        "rope_interleaved": False,
        "rope_theta": 100000,
        "torch_dtype": "bfloat16",
        "use_resampler": False,
        "vocab_size": 49280,
    },
    "tie_word_embeddings": False,
    "vision_config": {
        "hidden_size": 768,
        "image_size": 512,
        "max_image_size": {"longest_edge": 512},
        "model_type": "idefics3_vision",
        "num_attention_heads": 12,
        "patch_size": 16,
        "size": {"longest_edge": 2048},
    },
    "vocab_size": 49280,
}
QWEN_TEXT = {
    "attention_dropout": 0.0,
    "bos_token_id": 151643,
    "eos_token_id": 151645,
    "vision_start_token_id": 151652,
    "vision_end_token_id": 151653,
    "vision_token_id": 151654,
    "image_token_id": 151655,
    "video_token_id": 151656,
    "hidden_act": "silu",
    "initializer_range": 0.02,
    "num_key_value_heads": 2,
    "rms_norm_eps": 1e-06,
    "rope_scaling": {"type": "mrope", "mrope_section": [16, 24, 24]},
    "rope_theta": 1000000.0,
    "sliding_window": 32768,
    "tie_word_embeddings": True,
    "torch_dtype": "bfloat16",
    "use_cache": True,
    "use_sliding_window": False,
    "vocab_size": 151936,
}
QWEN2 = {
    **QWEN_TEXT,
    "model_type": "qwen2_vl",
    "hidden_size": 1536,
    "intermediate_size": 8960,
    "max_position_embeddings": 32768,
    "max_window_layers": 28,
    "num_attention_heads": 12,
    "num_hidden_layers": 28,
    "vision_config": {"depth": 32, "embed_dim": 1280, "hidden_size": 1536, "in_chans": 3, "spatial_patch_size": 14},
}
QWEN2_5 = {
    **QWEN_TEXT,
    "model_type": "qwen2_5_vl",
    "hidden_size": 2048,
    "intermediate_size": 11008,
    "max_position_embeddings": 128000,
    "max_window_layers": 70,
    "num_attention_heads": 16,
    "num_hidden_layers": 36,
    "vision_config": {
        "depth": 32,
        "fullatt_block_indexes": [7, 15, 23, 31],
        "hidden_size": 1280,
        "in_chans": 3,
        "intermediate_size": 3420,
        "out_hidden_size": 2048,
        "spatial_patch_size": 14,
        "tokens_per_second": 2,
        "window_size": 112,
    },
}
QWEN3 = {
    "architectures": ["Qwen3VLForConditionalGeneration"],
    "image_token_id": 151655,
    "model_type": "qwen3_vl",
    "text_config": {
        "attention_bias": False,
        "attention_dropout": 0.0,
        "bos_token_id": 151643,
        "dtype": "bfloat16",
        "eos_token_id": 151645,
        "head_dim": 128,
        "hidden_act": "silu",
        "hidden_size": 2560,
        "initializer_range": 0.02,
        "intermediate_size": 9728,
        "max_position_embeddings": 262144,
        "model_type": "qwen3_vl_text",
        "num_attention_heads": 32,
        "num_hidden_layers": 36,
        "num_key_value_heads": 8,
        "rms_norm_eps": 1e-06,
        "rope_scaling": {"mrope_interleaved": True, "mrope_section": [24, 20, 20], "rope_type": "default"},
        "rope_theta": 5000000,
        "tie_word_embeddings": True,
        "use_cache": True,
        "vocab_size": 151936,
    },
    "tie_word_embeddings": True,
    "video_token_id": 151656,
    "vision_config": {
        "deepstack_visual_indexes": [5, 11, 17],
        "depth": 24,
        "hidden_act": "gelu_pytorch_tanh",
        "hidden_size": 1024,
        "in_channels": 3,
        "initializer_range": 0.02,
        "intermediate_size": 4096,
        "model_type": "qwen3_vl",
        "num_heads": 16,
        "num_position_embeddings": 2304,
        "out_hidden_size": 2560,
        "patch_size": 16,
        "spatial_merge_size": 2,
        "temporal_patch_size": 2,
    },
    "vision_end_token_id": 151653,
    "vision_start_token_id": 151652,
}
LIMITS = VisionLimits(images=4, tokens=1280)


def read(config: dict[str, Any], folder: Path) -> dict[str, Any]:
    (folder / "config.json").write_text(json.dumps(config))
    return whole_config(folder)


@pytest.mark.parametrize(
    ("config", "layout", "tokens", "shape"),
    [
        (LLAVA, "image", 576, ("images", 3, 336, 336)),
        (SMOLVLM, "tiles", 64, ("images", 3, 512, 512)),
        (QWEN2, "patches", 0, ("tokens", 4, 1176)),
        (QWEN2_5, "patches", 0, ("tokens", 4, 1176)),
        (QWEN3, "patches", 0, ("tokens", 4, 1536)),
    ],
    ids=["llava-1.5", "smolvlm-256m", "qwen2-vl-2b", "qwen2.5-vl-3b", "qwen3-vl-4b"],
)
def test_towers_of_published_models(
    config: dict[str, Any], layout: str, tokens: int, shape: tuple[Any, ...], tmp_path: Path
) -> None:
    spec = vision_spec(read(config, tmp_path), LIMITS)
    assert (spec.layout, spec.tokens_per_image) == (layout, tokens)
    assert next(iter(spec.inputs.values())).shape == shape
    assert spec.window_size == (4 if config is QWEN2_5 else 0)


@pytest.mark.parametrize(
    ("config", "layers", "hidden_size", "sections"),
    [
        (LLAVA, 32, 4096, ()),
        (SMOLVLM, 30, 576, ()),
        (QWEN2, 28, 1536, (16, 24, 24)),
        (QWEN2_5, 36, 2048, (16, 24, 24)),
        (QWEN3, 36, 2560, (24, 20, 20)),
    ],
    ids=["llava-1.5", "smolvlm-256m", "qwen2-vl-2b", "qwen2.5-vl-3b", "qwen3-vl-4b"],
)
def test_language_models_of_published_models(
    config: dict[str, Any], layers: int, hidden_size: int, sections: tuple[int, ...], tmp_path: Path
) -> None:
    read(config, tmp_path)
    spec = decoder_spec(text_fields(tmp_path / "config.json"))
    assert (len(spec.layers), spec.hidden_size) == (layers, hidden_size)
    assert spec.head.is_tied == config["tie_word_embeddings"]
    assert spec.layers[0].attention.rope is not None
    assert spec.layers[0].attention.rope.sections == sections
    assert spec.layers[0].attention.sliding_window is None


@pytest.mark.parametrize(
    ("vision", "count"),
    [
        ({}, 3),
        ({"deepstack_visual_indexes": []}, 0),
        ({"deepstack_visual_indexes": [3, 1, 3, -1, 4], "depth": 4}, 2),
        ({"num_hidden_layers": 9}, 1),
    ],
    ids=str,
)
def test_features_of_inner_layers_are_those_that_transformers_gives(vision: dict[str, Any], count: int) -> None:
    assert image_traits({"model_type": "qwen3_vl", "vision_config": vision}).deepstack == count


def test_a_first_stage_that_lacks_layers_that_add_features(tmp_path: Path) -> None:
    read(QWEN3, tmp_path)
    whole = decoder_spec(text_fields(tmp_path / "config.json"))
    stage = rank_spec(whole, Grid(pipeline=18), 0)
    with pytest.raises(NetworkError) as caught:
        build_decoder(Graph(rtx()), stage, {}, DecoderOptions(has_embeds_input=True, deepstack=3))
    what = "vectors of images are added after the first 3 layers, and the first stage has 2"
    assert str(caught.value) == f"qwen3_vl_text: {what}\nfix: use fewer pipeline stages"


def test_a_tower_of_another_size(tmp_path: Path) -> None:
    fields = read(QWEN3, tmp_path)
    with pytest.raises(SourceError, match=r"`vision_config.out_hidden_size` is 2048, the language model's is 2560"):
        vision_spec({**fields, "vision_config": {**fields["vision_config"], "out_hidden_size": 2048}}, LIMITS)
    with pytest.raises(SourceError, match="damaged: TypeError"):
        image_traits({**QWEN3, "vision_config": {"deepstack_visual_indexes": 3}})


@pytest.mark.parametrize("has_modules", [False, True])
def test_what_predicts_several_tokens_is_kept_where_the_config_states_it(tmp_path: Path, *, has_modules: bool) -> None:
    """Qwen3.5's files have it next to tower and language model."""
    stated = {"mtp_num_hidden_layers": 1} if has_modules else {}
    config = {**QWEN3, "text_config": {**QWEN3["text_config"], **stated}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    stored = StoredArray((2,), lambda: np.zeros(2))
    names = ("model.language_model.norm.weight", "model.visual.merger.norm.weight", "mtp.fc.weight")
    _, inner = unwrap(tmp_path / "config.json", dict.fromkeys(names, stored))
    assert list(inner) == ["model.norm.weight", *(["mtp.fc.weight"] if has_modules else [])]


def test_a_family_that_is_not_known() -> None:
    with pytest.raises(SourceError) as caught:
        vision_spec({"model_type": "owl"}, LIMITS)
    known = (
        "gemma3, idefics3, internvl, llava, qwen2_5_vl, qwen2_vl, qwen3_5, qwen3_5_moe, qwen3_vl, qwen3_vl_moe, smolvlm"
    )
    assert str(caught.value) == f"config.json: `owl` is not a vision-language family\nfix: known: {known}"


def test_sections_that_do_not_fill_a_head(tmp_path: Path) -> None:
    config = {**QWEN2, "rope_scaling": {"type": "mrope", "mrope_section": [16, 24, 20]}}
    read(config, tmp_path)
    with pytest.raises(SourceError, match=r"`mrope_section` \[16, 24, 20\] has 60 pairs, a head has 64"):
        decoder_spec(text_fields(tmp_path / "config.json"))
