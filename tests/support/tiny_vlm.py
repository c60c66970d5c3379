"""Tiny random vision-language models with tokenizer, chat template and image processor, and transformers' answers."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from PIL import Image
from transformers import (
    AutoConfig,
    AutoImageProcessor,
    AutoModelForImageTextToText,
    CLIPImageProcessorPil,
    Gemma3ImageProcessorPil,
    GotOcr2ImageProcessorPil,
    Idefics3ImageProcessorPil,
    Qwen2VLImageProcessorPil,
    SiglipImageProcessorPil,
    SmolVLMImageProcessorPil,
)
from transformers.utils import logging as transformers_logging

from tests.unit.runtime.text.tokenizers import byte_level
from trtkit.builder.build import build_bundle
from trtkit.config.load import load_config
from trtkit.jobs.runner import new_runner

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trtkit.runtime.text import Tokenizer

LENGTH = 160
"""Tokens per slot."""
MAX_PREFILL = 32
IMAGE_TEXTS = {"llava": "<image>", "smolvlm": "<image>", "idefics3": "<image>", "internvl": "<IMG_CONTEXT>"}
IMAGE_TEXTS |= {"gemma3": "<start_of_image>"}
QWEN_IMAGE = "<|vision_start|><|image_pad|><|vision_end|>"
TILES = [f"<row_{row}_col_{column}>" for row in (1, 2, 3) for column in (1, 2, 3)]
SPECIAL = ["<image>", "<|vision_start|>", "<|image_pad|>", "<|vision_end|>", "<|video_pad|>"]
SPECIAL += ["<fake_token_around_image>", "<global-img>", *TILES, "<img>", "<IMG_CONTEXT>", "</img>"]
SPECIAL += ["<start_of_image>", "<end_of_image>", "<image_soft_token>"]
TEMPLATE = """\
{%- for message in messages %}<|im_start|>{{ message['role'] + '\n' }}
{%- for part in message['content'] %}{% if part['type'] == 'image' %}IMAGE{% else %}{{ part['text'] }}{% endif %}
{%- endfor %}<|im_end|>{{ '\n' }}
{%- endfor %}
{%- if add_generation_prompt %}<|im_start|>{{ 'assistant\n' }}{% endif %}"""
TEXT = {
    "hidden_size": 48,
    "intermediate_size": 76,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
LLAMA = {"model_type": "llama", **TEXT}
MROPE = {"rope_type": "default", "rope_theta": 100.0, "mrope_section": [2, 1, 3]}
GEMMA_ODD = {"layer_types": None, "sliding_window_pattern": 2, "sliding_window": 64, "num_key_value_heads": 1}
GEMMA_ODD |= {"attention_bias": True, "hidden_activation": "silu"}
TOWER = {"hidden_size": 42, "intermediate_size": 52, "num_hidden_layers": 2, "num_attention_heads": 3}
CLIP = {"model_type": "clip_vision_model", **TOWER, "image_size": 30, "patch_size": 6}
SIGLIP = {"model_type": "siglip_vision_model", **TOWER, "num_hidden_layers": 3, "image_size": 28, "patch_size": 7}
GEMMA = {"model_type": "gemma3_text", **TEXT, "head_dim": 10, "num_hidden_layers": 3, "sliding_window": 5}
GEMMA |= {"layer_types": ["sliding_attention", "full_attention", "sliding_attention"], "query_pre_attn_scalar": 17}
QWEN = {"in_channels": 3, "patch_size": 4, "num_heads": 3, "depth": 2}
PATCHES = {"patch_size": 4, "merge_size": 2, "size": {"shortest_edge": 64, "longest_edge": 64 * 24}}
CROPPED = {"size": {"height": 28, "width": 28}, "min_patches": 1, "max_patches": 6}
QWEN3 = {**QWEN, "depth": 4, "hidden_size": 36, "out_hidden_size": 48, "intermediate_size": 52}
QWEN3 |= {"num_position_embeddings": 30}
INTERLEAVED = {"rope_type": "default", "rope_theta": 100.0, "mrope_section": [2, 1, 3], "mrope_interleaved": True}
EXPERTS = {"num_experts": 5, "num_experts_per_tok": 2, "moe_intermediate_size": 20, "mlp_only_layers": [1]}
DELTA = {**TEXT, "head_dim": 24, "linear_key_head_dim": 8, "linear_value_head_dim": 12, "linear_num_key_heads": 2}
DELTA |= {"linear_num_value_heads": 4, "layer_types": ["linear_attention", "full_attention"]}
DELTA |= {"rope_parameters": {**INTERLEAVED, "partial_rotary_factor": 0.5, "mrope_section": [3, 1, 2]}}
MORE_EXPERTS = {"num_experts": 5, "num_experts_per_tok": 2, "moe_intermediate_size": 20}
MORE_EXPERTS |= {"shared_expert_intermediate_size": 28}
DELTA_EXPERTS = {key: value for key, value in (DELTA | MORE_EXPERTS).items() if key != "intermediate_size"}
TILED = {"size": {"longest_edge": 56}, "max_image_size": {"longest_edge": 28}}
transformers_logging.disable_progress_bar()
transformers_logging.set_verbosity_error()
torch.set_num_threads(1)


@dataclass(frozen=True)
class Vlm:
    """A model with random weights. config: arguments of `AutoConfig.for_model`. processor: its image processor."""

    name: str
    model_type: str
    config: dict[str, Any] = field(hash=False)
    processor: Any = field(hash=False)
    text: dict[str, Any] = field(hash=False, default_factory=dict)

    def __str__(self) -> str:
        return self.name

    @property
    def image_text(self) -> str:
        """An image's placeholder in a text."""
        return IMAGE_TEXTS.get(self.model_type, QWEN_IMAGE)


def vlms() -> list[Vlm]:
    """Return a model of every family."""
    clip = CLIPImageProcessorPil(size={"shortest_edge": 30}, crop_size={"height": 30, "width": 30})
    siglip = SiglipImageProcessorPil(size={"height": 28, "width": 28})
    layers = {"vision_feature_layer": [-3, -1], "vision_feature_select_strategy": "full"}
    qwen = {**QWEN, "embed_dim": 36, "hidden_size": 48, "mlp_ratio": 2}
    qwen_2_5 = {**QWEN, "hidden_size": 36, "out_hidden_size": 48, "intermediate_size": 52}
    qwen_2_5 |= {"window_size": 16, "fullatt_block_indexes": [1]}
    cropped = GotOcr2ImageProcessorPil(**CROPPED)
    turned = {**TEXT, "head_dim": 12, "attention_bias": True, "rope_parameters": INTERLEAVED}
    shallow = {**_deep(2, 0), "depth": 3}
    patches, mrope = Qwen2VLImageProcessorPil(**PATCHES), {**TEXT, "rope_parameters": MROPE}
    return [
        Vlm("llava", "llava", {"vision_config": CLIP}, clip, LLAMA),
        Vlm("llava-siglip", "llava", {"vision_config": SIGLIP, **layers}, siglip, LLAMA),
        Vlm("smolvlm", "smolvlm", _tiled(), SmolVLMImageProcessorPil(**TILED), LLAMA),
        Vlm("idefics3", "idefics3", _tiled(), Idefics3ImageProcessorPil(**TILED), LLAMA),
        Vlm("internvl", "internvl", _cropped(), cropped, LLAMA),
        Vlm(
            "internvl-shallow",
            "internvl",
            _cropped(vision_feature_layer=-2),
            GotOcr2ImageProcessorPil(**CROPPED),
            LLAMA,
        ),
        Vlm("gemma3", "gemma3", _pooled(30, 6, 4), _pictures(30), GEMMA),
        Vlm("gemma3-odd", "gemma3", _pooled(35, 5, 9), _pictures(35), GEMMA | GEMMA_ODD),
        Vlm("qwen2-vl", "qwen2_vl", {"vision_config": qwen}, patches, mrope),
        Vlm("qwen2.5-vl", "qwen2_5_vl", {"vision_config": qwen_2_5}, patches, mrope),
        Vlm("qwen3-vl", "qwen3_vl", {"vision_config": shallow}, patches, {**turned, "num_hidden_layers": 3}),
        Vlm("qwen3-vl-plain", "qwen3_vl", {"vision_config": _deep()}, patches, turned),
        Vlm("qwen3-vl-deep", "qwen3_vl", {"vision_config": _deep(3, 1, 2, 1, 9)}, patches, turned),
        Vlm("qwen3.5", "qwen3_5", {"vision_config": {**QWEN3, "depth": 2}}, patches, DELTA),
        Vlm("qwen3.5-moe", "qwen3_5_moe", {"vision_config": QWEN3}, patches, DELTA_EXPERTS),
        Vlm("qwen3-vl-moe", "qwen3_vl_moe", {"vision_config": _deep(1, 3)}, patches, {**turned, **EXPERTS}),
    ]


def _tiled() -> dict[str, Any]:
    """Return the config of Idefics3 and SmolVLM: tiles of 16 patches, which become 4 tokens."""
    return {"vision_config": {**TOWER, "image_size": 28, "patch_size": 7}, "scale_factor": 2}


def _deep(*indexes: int) -> dict[str, Any]:
    """Return the config of Qwen3-VL's tower. indexes: the layers whose features the decoder adds (DeepStack)."""
    return {**QWEN3, "deepstack_visual_indexes": list(indexes)}


def _pooled(size: int, patch: int, tokens: int) -> dict[str, Any]:
    """Return the config of Gemma 3: images whose patches are pooled into `tokens`."""
    return {"vision_config": {**SIGLIP, "image_size": size, "patch_size": patch}, "mm_tokens_per_image": tokens}


def _pictures(size: int) -> Gemma3ImageProcessorPil:
    """Return an image processor for whole square images."""
    return Gemma3ImageProcessorPil(size={"height": size, "width": size}, do_pan_and_scan=False)


def _cropped(**more: Any) -> dict[str, Any]:
    """Return the config of InternVL: crops of 16 patches, which become 4 tokens."""
    vision = {**TOWER, "image_size": [28, 28], "patch_size": [7, 7], "attention_bias": True, "use_qk_norm": True}
    return {"vision_config": vision, "downsample_ratio": 0.5, **more}


VLMS = {vlm.name: vlm for vlm in vlms()}


@cache
def tokenizer(vlm: Vlm) -> Tokenizer:
    """Return a byte-level BPE tokenizer with the special tokens of all families."""
    bpe = byte_level(chat_template=TEMPLATE.replace("IMAGE", vlm.image_text))
    bpe.hf.add_special_tokens({"additional_special_tokens": SPECIAL})
    return bpe


@cache
def model_of(vlm: Vlm) -> Any:
    """Return transformers' model with all weights random, so that answers depend on each of them."""
    torch.manual_seed(0)
    hf = tokenizer(vlm).hf
    text = {**vlm.text, "vocab_size": len(hf), "eos_token_id": hf.eos_token_id}
    name = "<|image_pad|>" if vlm.model_type.startswith("qwen") else IMAGE_TEXTS[vlm.model_type]
    is_tied = vlm.name in ("smolvlm", "gemma3", "qwen3-vl-plain")
    ids = {"image_token_id": hf.convert_tokens_to_ids(name), "tie_word_embeddings": is_tied}
    if vlm.model_type == "gemma3":
        names = {"image_token_index": SPECIAL[-1], "boi_token_index": SPECIAL[-3], "eoi_token_index": SPECIAL[-2]}
        text["tie_word_embeddings"] = is_tied
        ids = {key: hf.convert_tokens_to_ids(token) for key, token in names.items()} | {"tie_word_embeddings": is_tied}
    if vlm.model_type.startswith("qwen"):
        names = {
            "video_token_id": "<|video_pad|>",
            "vision_start_token_id": SPECIAL[1],
            "vision_end_token_id": SPECIAL[3],
        }
        ids |= {key: hf.convert_tokens_to_ids(token) for key, token in names.items()}
    config = AutoConfig.for_model(vlm.model_type, text_config=text, **vlm.config, **ids)
    model = AutoModelForImageTextToText.from_config(config, attn_implementation="eager").eval()
    for weight_name, weight in model.named_parameters():
        is_matrix = weight.dim() > 1
        center = 1.0 if "norm" in weight_name.lower() or "ln_q" in weight_name else 0.0
        deviation = 1.5 * (weight[0].numel() ** -0.5) if is_matrix else 0.1
        torch.nn.init.normal_(weight, center if not is_matrix else 0.0, deviation)
    return model


@cache
def folder_of(vlm: Vlm) -> Path:
    """Return a folder with the model saved by transformers."""
    folder = Path(mkdtemp(prefix="trtkit-test-"))
    model_of(vlm).save_pretrained(folder)
    tokenizer(vlm).hf.save_pretrained(folder)
    vlm.processor.save_pretrained(folder)
    return folder


@cache
def bundle_of(vlm: Vlm, *overrides: str) -> Path:
    """Return the model's bundle, with 3 slots and logits of all tokens."""
    return build(folder_of(vlm), Path(mkdtemp(prefix="trtkit-test-")), *overrides)


def build(folder: Path, out: Path, *overrides: str) -> Path:
    """Build a bundle below `out` from the model in `folder`."""
    limits = f"max_batch_size: 3, max_sequence_length: {LENGTH}, max_prefill_length: {MAX_PREFILL}, logits: all"
    (out / "m.yaml").write_text(f"source: {{hf: {folder}}}\nllm: {{{limits}}}\nvision: {{max_images: 3}}\n")
    config = load_config(str(out / "m.yaml"), overrides)
    return build_bundle(config, out / "bundle", new_runner()).bundle.path


def picture(width: int, height: int, seed: int = 0) -> Image.Image:
    """Return an image of random colours."""
    generator = np.random.default_rng(seed)
    return Image.fromarray(generator.integers(0, 256, (height, width, 3), dtype=np.uint8))


class Reference:
    """transformers' model, on prompts with expanded placeholders."""

    def __init__(self, vlm: Vlm) -> None:
        self.model, self._folder = model_of(vlm), folder_of(vlm)
        self._is_gemma = vlm.model_type == "gemma3"
        self._is_tiled, self._is_qwen = "scale_factor" in vlm.config, vlm.model_type.startswith("qwen")

    def images(self, images: Sequence[Image.Image]) -> dict[str, torch.Tensor]:
        """Return the whole model's inputs for images."""
        if not images:
            return {}
        processor = AutoImageProcessor.from_pretrained(self._folder, backend="pil")
        crops = {"crop_to_patches": True} if self.model.config.model_type == "internvl" else {}
        processed = processor([list(images)] if self._is_tiled else list(images), return_tensors="pt", **crops)
        return {name: processed[name] for name in processed if name not in ("rows", "cols", "num_patches", "num_crops")}

    def features(self, images: Sequence[Image.Image]) -> torch.Tensor:
        """Return the vision tower's soft tokens [P, D]."""
        with torch.inference_mode():
            features = self.model.get_image_features(**self.images(images))
        deep = [torch.cat(list(layer)) for layer in getattr(features, "deepstack_features", None) or ()]
        own = torch.cat([item.reshape(-1, item.shape[-1]) for item in features.pooler_output])
        return torch.cat([own, *deep], -1)

    def logits(self, ids: Sequence[int], images: Sequence[Image.Image]) -> torch.Tensor:
        """Return logits [S, V] of a prompt."""
        with torch.inference_mode():
            logits: torch.Tensor = self.model(**self.inputs(ids, images)).logits[0]
        return logits

    def greedy(self, ids: Sequence[int], images: Sequence[Image.Image], count: int) -> list[int]:
        """Return `count` most likely tokens after a prompt."""
        options = {"max_new_tokens": count, "do_sample": False, "eos_token_id": None, "pad_token_id": 0}
        with torch.inference_mode():
            sequences = self.model.generate(**self.inputs(ids, images), **options)
        return [int(token) for token in sequences[0, len(ids) :]]

    def inputs(self, ids: Sequence[int], images: Sequence[Image.Image]) -> dict[str, torch.Tensor]:
        """Return the whole model's inputs."""
        tokens = torch.tensor([list(ids)])
        inputs = {"input_ids": tokens, "attention_mask": torch.ones_like(tokens), **self.images(images)}
        if self._is_qwen:
            inputs["mm_token_type_ids"] = (tokens == self.model.config.image_token_id).int()
        if self._is_gemma:
            inputs["token_type_ids"] = (tokens == self.model.config.image_token_id).int()
        return inputs
