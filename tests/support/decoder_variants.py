"""Decoder cases with other settings: their errors against transformers, or trtkit's refusal."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
import torch

from tests.support.decoder_case import YARN_ROPE
from tests.support.decoder_cases import CASES
from tests.support.decoders import executor_of, model_of, relative_rms
from trtkit.dtypes import FP32
from trtkit.errors import SourceError

if TYPE_CHECKING:
    from tests.support.decoder_case import Case

TIED, UNTIED = {"tie_word_embeddings": True}, {"tie_word_embeddings": False}
LINEAR_ROPE = {"rope_type": "linear", "rope_theta": 50.0, "factor": 3.0}
# Plain cases by what can be changed: those with one rotary embedding, with grouped-query heads, and with a tied or
# untied LM head.
_ROTATED = (
    "apertus", "arcee", "bitnet", "cohere", "cohere2", "cwm", "ernie4_5", "exaone4", "gemma", "gemma2", "glm", "glm4",
    "granite", "helium", "jais2", "mistral", "mixtral", "nanochat", "olmo", "olmo2", "phi", "qwen2", "qwen2_moe",
    "qwen3", "qwen3_moe", "seed_oss", "smollm3", "starcoder2",
)  # fmt: skip
_GROUPED = [*_ROTATED, "gemma3", "ministral3", "olmo3", "phi3"]
_TIED = (
    "arcee", "bloom", "cohere", "cohere2", "gemma", "gemma2", "gemma3", "glm", "gpt2", "gpt_bigcode", "gpt_neo",
    "opt", "qwen3", "smollm3", "starcoder2",
)  # fmt: skip
_UNTIED = (
    "bitnet", "cwm", "ernie4_5", "exaone4", "glm4", "gpt_neox", "granite", "helium", "ministral3", "mistral", "mixtral",
    "olmo", "olmo2", "olmo3", "phi", "phi3", "qwen2", "qwen2_moe", "qwen3_moe", "seed_oss",
)  # fmt: skip
COMMON: list[tuple[str, dict[str, Any]]] = [
    *((name, {"rope_parameters": LINEAR_ROPE, "num_key_value_heads": 6}) for name in _ROTATED),
    *((name, {"rope_parameters": YARN_ROPE}) for name in _ROTATED if name != "arcee"),
    *((name, {"num_key_value_heads": 6}) for name in _GROUPED[len(_ROTATED) :]),
    *((name, UNTIED) for name in _TIED),
    *((name, TIED) for name in _UNTIED),
]
"""Changes of settings that most families have."""
IDS = torch.randint(3, 67, (2, 21), generator=torch.Generator().manual_seed(1))
_BY_NAME = {case.name: case for case in CASES}


def error_of_logits(name: str, changes: dict[str, Any]) -> float:
    """Return the relative error of the logits of a case with `changes`."""
    model = variant(name, changes)
    runner = executor_of(model, FP32)
    runner.reset(2)
    return relative_rms(runner.step(IDS)["logits"], model_of(model).logits(IDS))


def refusal(name: str, changes: dict[str, Any]) -> str:
    """Return the error that refuses a case with `changes`."""
    with pytest.raises(SourceError) as caught:
        _ = model_of(variant(name, changes)).spec
    return str(caught.value)


def variant(name: str, changes: dict[str, Any]) -> Case:
    """Return a case with `changes`."""
    case = _BY_NAME[name]
    return replace(case, name=f"{name} {changes}", config={**case.config, **changes})
