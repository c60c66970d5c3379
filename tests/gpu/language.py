"""Decoders of published sizes with seeded weights, generated on the machine that measures them."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from trtkit.config.schema import ModelConfig
from trtkit.models.registry import decoder_spec
from trtkit.models.weights import model_weights

if TYPE_CHECKING:
    from pathlib import Path

    from tests.gpu.place import Place
    from trtkit.bundle.bundle import Bundle

BLOCK = 128


@dataclass(frozen=True)
class Shape:
    """Sizes of a Llama. length: tokens per slot. batch: maximum number of slots."""

    name: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    intermediate: int
    vocab: int
    length: int = 2048
    batch: int = 32

    @property
    def head_dim(self) -> int:
        """Size of a head."""
        return self.hidden // self.heads

    @property
    def config(self) -> dict[str, Any]:
        """The config.json."""
        return {
            "model_type": "llama",
            "architectures": ["LlamaForCausalLM"],
            "vocab_size": self.vocab,
            "hidden_size": self.hidden,
            "intermediate_size": self.intermediate,
            "num_hidden_layers": self.layers,
            "num_attention_heads": self.heads,
            "num_key_value_heads": self.kv_heads,
            "max_position_embeddings": self.length,
            "rms_norm_eps": 1e-5,
            "rope_theta": 10000.0,
            "hidden_act": "silu",
            "tie_word_embeddings": False,
            "torch_dtype": "float16",
            "eos_token_id": 2,
        }

    def step_bytes(self, precision: str, batch: int, tokens: int) -> int:
        """Return the minimum bytes that a decode step reads: all weights but the embedding, and the caches."""
        weights = {weight.name: weight.shape for weight in model_weights(decoder_spec(self.config))}
        count = sum(torch.Size(shape).numel() for name, shape in weights.items() if "embed_tokens" not in name)
        head = self.hidden * self.vocab
        bits = 4 + 16 / BLOCK if precision == "int4" else 16
        cache = batch * tokens * self.layers * 2 * self.kv_heads * self.head_dim * 2
        return int((count - head) * bits / 8) + head * 2 + cache


TINY = Shape("tiny", 2, 256, 8, 4, 512, 512, length=64, batch=4)
SMOLLM2 = Shape("smollm2-135m", 30, 576, 9, 3, 1536, 49152)
ONE_B = Shape("llama-1b", 16, 2048, 32, 8, 8192, 128256)
EIGHT_B = Shape("llama-8b", 32, 4096, 32, 8, 14336, 128256)
SHAPES = {shape.name: shape for shape in (TINY, SMOLLM2, ONE_B, EIGHT_B)}


def decoder(
    place: Place, name: str, precision: str = "fp16", kv_window: str = "full", batching: str = "packed"
) -> tuple[Shape, Bundle]:
    """Return the bundle of a named shape, or of the tiny one if the place is simulated."""
    shape = TINY if place.is_simulated else SHAPES[name]
    key = f"{shape.name}-{precision}-{kv_window}-{batching}"
    return shape, place.bundle(key, lambda: _config(place, shape, precision, kv_window, batching))


def weights_folder(place: Place, shape: Shape, precision: str) -> Path:
    """Return a Hugging Face folder with seeded weights."""
    folder = place.scratch / "models" / f"{shape.name}-{precision}"
    if not (folder / "config.json").exists():
        folder.mkdir(parents=True, exist_ok=True)
        _save(place, shape, precision, folder)
        fields = shape.config
        if precision == "int4":
            fields["quantization_config"] = {"quant_method": "modelopt", "quant_algo": "W4A16_AWQ", "group_size": BLOCK}
        (folder / "config.json").write_text(json.dumps(fields))
    return folder


def _config(place: Place, shape: Shape, precision: str, kv_window: str, batching: str) -> ModelConfig:
    sizes = {
        "max_batch_size": shape.batch,
        "max_sequence_length": shape.length,
        "max_prefill_length": min(512, shape.length // 2),
        "kv_window": kv_window,
        "batching": batching,
    }
    source = {"hf": str(weights_folder(place, shape, precision))}
    fields = {"source": source, "precision": "fp16", "target": "sm80"} if precision == "int4" else {}
    fields = fields or {"source": source, "precision": precision}
    return ModelConfig.model_validate({**fields, "llm": sizes})


def _save(place: Place, shape: Shape, precision: str, folder: Path) -> None:
    """Write normal weights; norms' are near 1. Linear layers in int4 have random codes in ModelOpt's format."""
    from safetensors.torch import save_file

    from trtkit.quantization.llm.choice import linear_layers

    spec, dtype = (
        decoder_spec(shape.config),
        {"bf16": torch.bfloat16, "fp32": torch.float32}.get(precision, torch.float16),
    )
    random = torch.Generator(place.torch_device).manual_seed(0)
    linear = {f"{layer.name}.weight" for layer in linear_layers(spec)} - {"lm_head.weight"}
    tensors = {}
    for weight in model_weights(spec):
        size, options = tuple(weight.shape), {"generator": random, "device": place.torch_device}
        if precision == "int4" and weight.path in linear:
            rows, columns = size
            tensors[weight.name] = torch.randint(0, 256, (rows // 2, columns), dtype=torch.uint8, **options).cpu()
            scales = 0.002 + 0.004 * torch.rand((rows, columns // BLOCK), **options)
            tensors[f"{weight.name}_scale"] = (scales * (256 / shape.hidden) ** 0.5).half().cpu()
        else:
            values = torch.randn(size, **options) * (size[-1] ** -0.5 if len(size) > 1 else 0.02)
            tensors[weight.name] = (values + (len(size) == 1)).to(dtype).cpu()
    save_file(tensors, str(folder / "model.safetensors"))
