"""Granite's mixtures with sliding layers, attention sinks, and a rotary theta per layer."""

from dataclasses import replace

from trtkit.models.family_parts import GRANITE_SINKS, sliding_granite_layers
from trtkit.models.feed_forward import RoutingSpec
from trtkit.models.hf_config import HfConfig
from trtkit.models.mixtures import mixture_part
from trtkit.models.names import llama_names
from trtkit.models.parts import decoder_part, granite_scaled, mlp_part, rms_norm_part
from trtkit.models.spec import DecoderSpec

HF_CLASS = "GraniteMoeSWAForCausalLM"
DEFAULTS = {"max_position_embeddings": 2048, "sliding_window": 128, "num_local_experts": 8, "num_experts_per_tok": 2}
INSIDE = {
    **GRANITE_SINKS,
    "moe.router": "block_sparse_moe.router",
    **{f"moe.experts.{{e}}.{name}": f"block_sparse_moe.experts.{{e}}.{name}_proj" for name in ("gate", "up", "down")},
    "moe.shared.gate_up": "shared_mlp.input_linear",
    "moe.shared.down": "shared_mlp.output_linear",
}


def spec(config: HfConfig) -> DecoderSpec:
    expert, width = mlp_part(config), int(config.get("shared_intermediate_size", 0))
    shared = replace(expert, intermediate_size=width, is_fused=True) if width else None
    routing = RoutingSpec(int(config.need("num_experts_per_tok")))
    layers = sliding_granite_layers(
        config, mixture_part(config, int(config.need("num_local_experts")), routing, expert, shared)
    )
    return granite_scaled(config, decoder_part(config, layers, rms_norm_part(config), llama_names({}, INSIDE)))
