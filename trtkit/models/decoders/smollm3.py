"""SmolLM 3: Llama in which every fourth layer has no positions. HF: `SmolLM3ForCausalLM`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trtkit.models.names import llama_names
from trtkit.models.parts import (
    biased_attention_part,
    decoder_part,
    layers_part,
    mlp_part,
    optional_windows,
    rms_norm_part,
)
from trtkit.models.rope import rope_spec

if TYPE_CHECKING:
    from trtkit.models.hf_config import HfConfig
    from trtkit.models.spec import DecoderSpec

DEFAULTS = {"num_key_value_heads": 4, "tie_word_embeddings": True}


def spec(config: HfConfig) -> DecoderSpec:
    """Return the model that a config describes."""
    attention = biased_attention_part(config)
    mlp = mlp_part(config, has_bias=bool(config.get("mlp_bias", False)))
    rope, every = rope_spec(config, attention.head_dim, theta=2e6), int(config.get("no_rope_layer_interval", 4))
    rotated = config.get("no_rope_layers", [(index + 1) % every for index in range(config.need("num_hidden_layers"))])
    ropes = [rope if is_rotated else None for is_rotated in rotated]
    layers = layers_part(config, attention, mlp, ropes, optional_windows(config))
    return decoder_part(config, layers, rms_norm_part(config), llama_names())
