"""gpt-oss: experts with biases and clamped activations, attention sinks, sliding attention in every other layer."""

from dataclasses import replace

from trtkit.models.feed_forward import RoutingSpec
from trtkit.models.hf_config import HfConfig
from trtkit.models.mixtures import mixture_part
from trtkit.models.names import EXPERT_NAMES, llama_names
from trtkit.models.parts import attention_part, decoder_part, layers_part, mlp_part, rms_norm_part, sliding_windows
from trtkit.models.rope import rope_spec
from trtkit.models.spec import DecoderSpec

HF_CLASS = "GptOssForCausalLM"
ALIASES = {"num_experts": "num_local_experts"}
DEFAULTS = {
    "head_dim": 64,
    "num_key_value_heads": 8,
    "num_experts": 128,
    "num_experts_per_tok": 4,
    "sliding_window": 128,
    "max_position_embeddings": 131072,
    "rms_norm_eps": 1e-5,
}
INSIDE = {**EXPERT_NAMES, "moe.router": "mlp.router", "attention.sinks": "self_attn.sinks"}
YARN = {
    "rope_type": "yarn",
    "factor": 32.0,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "truncate": False,
    "original_max_position_embeddings": 4096,
}


def spec(config: HfConfig) -> DecoderSpec:
    top_k, has_bias = int(config.need("num_experts_per_tok")), bool(config.get("attention_bias", True))
    config.refuse("hidden_act", "silu")
    config.refuse("experts_per_token", top_k)
    config.get("initial_context_length")  # repeated in `rope_scaling`
    attention = attention_part(config, has_qkv_bias=has_bias, has_output_bias=has_bias)
    expert = replace(mlp_part(config, has_bias=True), limit=float(config.get("swiglu_limit", 7.0)))
    expert = replace(expert, sigmoid_factor=float(config.get("swiglu_alpha", 1.702)))
    moe = mixture_part(config, int(config.need("num_experts")), RoutingSpec(top_k, has_bias=True), expert)
    count = int(config.need("num_hidden_layers"))
    types = ["full_attention" if index % 2 else "sliding_attention" for index in range(count)]
    rope = rope_spec(config, attention.head_dim, theta=150000.0, parameters=YARN)
    layers = layers_part(config, replace(attention, has_sinks=True), moe, rope, sliding_windows(config, types))
    return decoder_part(config, layers, rms_norm_part(config), llama_names({}, INSIDE))
