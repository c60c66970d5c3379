"""Tiny models of every decoder family: odd sizes, grouped heads where the family has them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Case:
    """A model with random weights. config: what `AutoConfig.for_model` takes besides `model_type`."""

    name: str
    model_type: str
    config: dict[str, Any] = field(hash=False)

    def __str__(self) -> str:
        return self.name


SIZES = {
    "vocab_size": 67,
    "hidden_size": 42,
    "intermediate_size": 76,
    "num_hidden_layers": 2,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 100.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}


def case(name: str, model_type: str, *without: str, **changes: Any) -> Case:
    """Return a case with SIZES, without the fields a family lacks, with changes."""
    kept = {key: value for key, value in SIZES.items() if key not in without}
    return Case(name, model_type, {**kept, **changes})


CASES = [
    case("llama", "llama"),
    case("llama-3", "llama", tie_word_embeddings=True, rope_parameters=LLAMA3_ROPE),
    case("llama-biases", "llama", attention_bias=True, mlp_bias=True, num_key_value_heads=6),
]
