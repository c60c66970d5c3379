"""SmolLM 3: Llama in which every fourth layer has no rotary embedding."""

from trtkit.errors import SourceError
from trtkit.models.hf_config import FIX, HfConfig
from trtkit.models.names import llama_names
from trtkit.models.parts import (
    biased_attention_part,
    decoder_part,
    layers_part,
    mlp_part,
    rms_norm_part,
    sliding_windows,
)
from trtkit.models.rope import rope_spec
from trtkit.models.spec import DecoderSpec

HF_CLASS = "SmolLM3ForCausalLM"
DEFAULTS = {"num_key_value_heads": 4, "tie_word_embeddings": True}


def spec(config: HfConfig) -> DecoderSpec:
    attention = biased_attention_part(config)
    mlp = mlp_part(config, has_bias=bool(config.get("mlp_bias", False)))
    rope, every = rope_spec(config, attention.head_dim, theta=2e6), int(config.get("no_rope_layer_interval", 4))
    count = int(config.need("num_hidden_layers"))
    rotated = list(config.get("no_rope_layers", [(index + 1) % every for index in range(count)]))[:count]
    if len(rotated) < count:
        raise SourceError(f"`no_rope_layers` has {len(rotated)} entries for {count} layers", config.where, FIX)
    ropes = [rope if is_rotated else None for is_rotated in rotated]
    config.get("max_window_layers")  # transformers does not read it
    # As in transformers, `use_sliding_window` only affects the default `layer_types`, in which rotated layers are full.
    slides = bool(config.get("use_sliding_window", False))
    usual = ["sliding_attention" if slides and not is_rotated else "full_attention" for is_rotated in rotated]
    layers = layers_part(config, attention, mlp, ropes, sliding_windows(config, usual))
    return decoder_part(config, layers, rms_norm_part(config), llama_names())
