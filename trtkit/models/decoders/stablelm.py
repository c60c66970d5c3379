"""StableLM 2 and 3B: Llama with layer norms and partly rotated heads. HF: `StableLmForCausalLM`."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from trtkit.models.names import llama_names
from trtkit.models.parts import attention_part, decoder_part, layer_norm_part, layers_part, mlp_part
from trtkit.models.rope import rope_spec
from trtkit.models.spec import BlockSpec

if TYPE_CHECKING:
    from trtkit.models.hf_config import HfConfig
    from trtkit.models.spec import DecoderSpec


def spec(config: HfConfig) -> DecoderSpec:
    """Return the model that a config describes."""
    config.refuse("qk_layernorm", False)
    norm = layer_norm_part(config)
    attention = attention_part(config, has_qkv_bias=bool(config.get("use_qkv_bias", False)))
    layers = layers_part(config, mlp_part(config), rope_spec(config, attention.head_dim, partial=0.25))
    model = decoder_part(config, attention, layers, norm, llama_names())
    is_parallel = bool(config.get("use_parallel_residual", False))
    norms = ("attention_norm",) if is_parallel else ("attention_norm", "mlp_norm")
    return replace(model, block=BlockSpec(norm, norms, is_parallel))
