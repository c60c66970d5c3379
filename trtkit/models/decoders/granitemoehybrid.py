"""Granite 4: Mamba-2 layers, some of them replaced by attention; an MLP, with or without experts next to it."""

from dataclasses import replace

from trtkit.models.feed_forward import MlpSpec, MoeSpec, RoutingSpec
from trtkit.models.hf_config import HfConfig
from trtkit.models.mixtures import mixture_part
from trtkit.models.names import GRANITE_EXPERT_NAMES, llama_names
from trtkit.models.parts import (
    biased_attention_part,
    decoder_part,
    granite_scaled,
    layer_types,
    layers_part,
    mlp_part,
    rms_norm_part,
)
from trtkit.models.recurrent_parts import MAMBA_NAMES, mamba_part, with_mixer
from trtkit.models.rope import rope_spec
from trtkit.models.spec import DecoderSpec

HF_CLASS = "GraniteMoeHybridForCausalLM"
DEFAULTS = {"mamba_d_head": "auto", "mamba_d_state": 256, "mamba_n_groups": 1, "mamba_n_heads": 128}
MLP = {"mlp.gate_up": "shared_mlp.input_linear", "mlp.down": "shared_mlp.output_linear"}
# Layer types as named before transformers 5.
TYPES = {"mamba": "linear_attention", "attention": "full_attention"}


def spec(config: HfConfig) -> DecoderSpec:
    attention = replace(biased_attention_part(config), scale=float(config.get("attention_multiplier", 1.0)))
    usual = ["linear_attention"] * int(config.need("num_hidden_layers"))
    types = [TYPES.get(kind, kind) for kind in layer_types(config, usual, (*TYPES, *TYPES.values()))]
    rope = rope_spec(config, attention.head_dim)
    turned = rope if config.get("position_embedding_type") == "rope" else None
    layers = layers_part(config, attention, _feed_forward(config), turned)
    layers = with_mixer(layers, types, "linear_attention", mamba_part(config))
    names = llama_names({}, {**GRANITE_EXPERT_NAMES, **MLP, **MAMBA_NAMES})
    return granite_scaled(config, decoder_part(config, layers, rms_norm_part(config), names))


def _feed_forward(config: HfConfig) -> MlpSpec | MoeSpec:
    """Return experts with a shared MLP, or the MLP alone."""
    expert, count = mlp_part(config), int(config.get("num_local_experts", 8))
    routing = RoutingSpec(int(config.get("num_experts_per_tok", 2)))
    shared = replace(expert, intermediate_size=int(config.get("shared_intermediate_size", 1024)), is_fused=True)
    return mixture_part(config, count, routing, expert, shared) if count else shared
