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
_HIDDEN = ("last_hidden_state", "pooler_output")
CASES = (
    Case("ViTForImageClassification", "vit", ("logits",), {**_SMALL, "intermediate_size": 56, "num_labels": 7}),
    Case("ViTModel", "vit", _HIDDEN, {**_SMALL, "intermediate_size": 56, "qkv_bias": False, "pooler_output_size": 20}),
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
