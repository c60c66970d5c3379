"""Qwen 1.5 and 2 mixtures of experts, with a shared expert. HF: `Qwen2MoeForCausalLM`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trtkit.models.names import EXPERT_NAMES, llama_names
from trtkit.models.parts import (
    attention_part,
    decoder_part,
    late_windows,
    layers_part,
    mlp_part,
    rms_norm_part,
    with_dense_layers,
)
from trtkit.models.rope import rope_spec
from trtkit.models.spec import MoeSpec

if TYPE_CHECKING:
    from trtkit.models.hf_config import HfConfig
    from trtkit.models.spec import DecoderSpec

DEFAULTS = {"num_key_value_heads": 16, "sliding_window": 4096}
INSIDE = {
    **EXPERT_NAMES,
    "moe.shared.gate": "mlp.shared_expert.gate_proj",
    "moe.shared.up": "mlp.shared_expert.up_proj",
    "moe.shared.down": "mlp.shared_expert.down_proj",
    "moe.shared_router": "mlp.shared_expert_gate",
}


def spec(config: HfConfig) -> DecoderSpec:
    """Return the model that a config describes."""
    attention = attention_part(config, has_qkv_bias=bool(config.get("qkv_bias", True)))
    moe = MoeSpec(
        int(config.get("num_experts", 60)),
        int(config.get("num_experts_per_tok", 4)),
        mlp_part(config, size="moe_intermediate_size"),
        bool(config.get("norm_topk_prob", False)),
        mlp_part(config, size="shared_expert_intermediate_size"),
    )
    layers = layers_part(config, attention, moe, rope_spec(config, attention.head_dim), late_windows(config))
    layers = with_dense_layers(config, layers)
    return decoder_part(config, layers, rms_norm_part(config), llama_names({}, INSIDE))
