"""Tiny models with random LoRA adapters, as transformers and PEFT save them."""

from __future__ import annotations

import shutil
from copy import deepcopy
from typing import TYPE_CHECKING, Any

import torch
from peft import LoraConfig, PeftModel, get_peft_model

from tests.support.decoders import model_of

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.decoder_case import Case


def save_base(folder: Path, case: Case) -> Path:
    """Write the case's model into `folder`."""
    model_of(case).hf.save_pretrained(folder)
    return folder


def save_adapter(folder: Path, hf: Any, seed: int = 0, **options: Any) -> Path:
    """Save a random adapter of a transformers model to `folder`, large enough to change the model's answers."""
    torch.manual_seed(seed)
    config = LoraConfig(**{"r": 4, "lora_alpha": 6, "init_lora_weights": False, **options})
    adapted = get_peft_model(deepcopy(hf), config)
    for name, weight in adapted.named_parameters():
        if "lora_" in name:
            torch.nn.init.normal_(weight, std=0.3)
    shutil.rmtree(folder, ignore_errors=True)
    adapted.save_pretrained(folder)
    return folder


def peft_logits(hf: Any, folder: Path, ids: torch.Tensor) -> torch.Tensor:
    """Return PEFT's logits [B, S, V] of a model with an unmerged adapter."""
    model = PeftModel.from_pretrained(deepcopy(hf), str(folder)).eval()
    with torch.inference_mode():
        logits: torch.Tensor = model(input_ids=ids.long()).logits
    return logits


def greedy_tokens(hf: Any, folder: Path | None, prompt: list[int], count: int) -> list[int]:
    """Return the greedy tokens of PEFT's model. folder: the adapter's; None for the model alone."""
    model = deepcopy(hf) if folder is None else PeftModel.from_pretrained(deepcopy(hf), str(folder))
    ids = torch.tensor([prompt])
    with torch.inference_mode():
        for _ in range(count):
            best = model.eval()(input_ids=ids).logits[:, -1].argmax(-1, keepdim=True)
            ids = torch.cat([ids, best], 1)
    return [int(token) for token in ids[0, len(prompt) :]]
