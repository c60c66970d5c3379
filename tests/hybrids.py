"""Tiny hybrids of transformers with random weights, as their folders are on disk."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
import transformers
from transformers.utils import logging as transformers_logging

if TYPE_CHECKING:
    from pathlib import Path

transformers_logging.disable_progress_bar()
torch.set_num_threads(1)


@dataclass(frozen=True)
class Case:
    """A class of transformers with a small config. outputs: names of what it gives."""

    architecture: str
    model_type: str
    outputs: tuple[str, ...]
    config: dict[str, Any] = field(default_factory=dict)
    size: tuple[int, int] = (30, 18)
    variant: str = ""

    def __str__(self) -> str:
        return f"{self.architecture}{self.variant and '-'}{self.variant}"


_SMALL = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "image_size": [30, 18], "patch_size": 6}
_REGISTERS, _SIGLIP = "dinov2_with_registers", "siglip_vision_model"
_SQUARE = {**_SMALL, "image_size": 30}
_BOXES = ("logits", "pred_boxes")
_RESNET = {
    "model_type": "resnet",
    "embedding_size": 8,
    "hidden_sizes": [8, 12, 16, 20],
    "depths": [1, 1, 2, 1],
    "layer_type": "basic",
}
_DETR = {
    "use_timm_backbone": False, "backbone": None, "backbone_config": {**_RESNET, "out_features": ["stage4"]},
    "d_model": 32, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4, "decoder_attention_heads": 2,
    "encoder_ffn_dim": 48, "decoder_ffn_dim": 40, "num_queries": 7, "num_labels": 5,
}  # fmt: skip
_HIDDEN = ("last_hidden_state", "pooler_output")
CASES = (
    Case("ViTForImageClassification", "vit", ("logits",), {**_SMALL, "intermediate_size": 56, "num_labels": 7}),
    Case("ViTModel", "vit", _HIDDEN, {**_SMALL, "intermediate_size": 56, "qkv_bias": False, "pooler_output_size": 20}),
    Case("Dinov2Model", "dinov2", _HIDDEN, {**_SQUARE, "use_swiglu_ffn": True}, (24, 42), "resized"),
    Case("Dinov2ForImageClassification", "dinov2", ("logits",), {**_SQUARE, "num_labels": 5}, (30, 30)),
    Case("Dinov2WithRegistersModel", _REGISTERS, _HIDDEN, {**_SQUARE, "image_size": 36}, (30, 18), "resized"),
    Case(
        "SiglipVisionModel",
        "siglip_vision_model",
        _HIDDEN,
        {**_SQUARE, "intermediate_size": 56},
        (30, 30),
    ),
    Case("DetrForObjectDetection", "detr", _BOXES, _DETR, (69, 90)),
)


def model_of(case: Case) -> Any:
    """Return the case's model with every weight random, norms and biases too."""
    torch.manual_seed(0)
    config = transformers.AutoConfig.for_model(case.model_type, **case.config)
    model = getattr(transformers, case.architecture)(config).eval()
    for name, weight in model.named_parameters():
        is_matrix = weight.dim() > 1
        deviation = weight[0].numel() ** -0.5 if is_matrix else 0.2
        center = 1.0 if "norm" in name.lower() and name.endswith("weight") else 0.0
        torch.nn.init.normal_(weight, 0.0 if is_matrix else center, deviation)
    for name, buffer in model.named_buffers():
        if name.endswith(("running_mean", "running_var")):
            torch.nn.init.uniform_(buffer, 0.5, 1.5)
    return model


def saved(case: Case, folder: Path) -> Any:
    """Write the case's model into a folder as transformers saves it; return the model."""
    model = model_of(case)
    model.save_pretrained(folder)
    return model


def answers(model: Any, case: Case, pixels: torch.Tensor) -> dict[str, torch.Tensor]:
    """Return the model's outputs by name."""
    with torch.inference_mode():
        found = model(pixel_values=pixels, return_dict=True)
    return {name: getattr(found, name) for name in case.outputs}


def case_of(name: str) -> Case:
    return next(case for case in CASES if str(case) == name)
