"""Phi-3.5-MoE: layer norms, and two experts per token, selected by a sparse mixer.

Beyond the training length, transformers would rotate new keys by other factors than the cached ones; such lengths are
refused.
"""

from dataclasses import replace

from trtkit.models.attention import NormSpec, RopeSpec
from trtkit.models.feed_forward import RoutingSpec
from trtkit.models.hf_config import HfConfig
from trtkit.models.mixtures import mixture_part
from trtkit.models.names import MIXTRAL_EXPERT_NAMES, llama_names
from trtkit.models.parts import biased_attention_part, decoder_part, layers_part, mlp_part, sliding_windows
from trtkit.models.rope import original_length, rope_spec
from trtkit.models.spec import DecoderSpec

HF_CLASS = "PhimoeForCausalLM"
DEFAULTS = {"num_key_value_heads": 8, "rms_norm_eps": 1e-5}
MSCALES = ("short_mscale", "long_mscale")


def spec(config: HfConfig) -> DecoderSpec:
    config.refuse("num_experts_per_tok", 2)
    config.get("input_jitter_noise")  # for training
    norm = NormSpec("layer", float(config.get("rms_norm_eps", 1e-5)), has_bias=True)
    attention = biased_attention_part(config)
    rope = _rope(config, attention.head_dim)
    routing = RoutingSpec(2, "sparse_mixer", jitter=float(config.get("router_jitter_noise", 0.01)))
    moe = mixture_part(config, int(config.get("num_local_experts", 16)), routing, mlp_part(config))
    layers = layers_part(config, attention, moe, rope, sliding_windows(config))
    model = decoder_part(config, layers, norm, llama_names({}, MIXTRAL_EXPERT_NAMES))
    head = replace(model.head, has_bias=bool(config.get("lm_head_bias", False)))
    length = model.max_position_embeddings if rope.scaling == "default" else original_length(rope)
    return replace(model, head=head, max_position_embeddings=length)


def _rope(config: HfConfig, head_dim: int) -> RopeSpec:
    """Return the rotary embedding for lengths up to the original one; `short_mscale` is its attention factor."""
    rope = rope_spec(config, head_dim, theta=1e6, read_elsewhere=MSCALES)
    if rope.scaling == "default":
        return rope
    stated = config.get("rope_parameters", {}) or config.get("rope_scaling", {})
    if stated.get("original_max_position_embeddings") is None:
        config.refuse("original_max_position_embeddings")  # transformers reads it only among the parameters
    if rope.scaling != "longrope":
        raise config.unsupported("rope_type", rope.scaling, ("default", "longrope"))
    kept = {name: value for name, value in rope.parameters.items() if name not in MSCALES}
    return replace(rope, parameters={**kept, "attention_factor": rope.parameters["short_mscale"]})
