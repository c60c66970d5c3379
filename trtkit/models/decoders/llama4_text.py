"""Llama 4's language model: chunked attention, some layers without a rotary embedding, experts with scaled inputs."""

from trtkit.models.family_parts import chunked_attentions
from trtkit.models.feed_forward import RoutingSpec
from trtkit.models.hf_config import HfConfig
from trtkit.models.mixtures import mixture_part
from trtkit.models.names import llama_names
from trtkit.models.parts import decoder_part, mlp_part, rms_norm_part
from trtkit.models.spec import DecoderSpec, LayerSpec

HF_CLASS = "Llama4ForCausalLM"
DEFAULTS = {
    "head_dim": 128,
    "num_key_value_heads": 8,
    "intermediate_size_mlp": 16384,
    "attention_chunk_size": 8192,
    "max_position_embeddings": 131072,
    "rms_norm_eps": 1e-5,
}
PARTS = ("gate", "up", "down")
INSIDE = {
    **{f"mlp.{name}": f"feed_forward.{name}_proj" for name in PARTS},
    "moe.router": "feed_forward.router",
    **{f"moe.experts.{{e}}.{name}": f"feed_forward.experts.{{e}}.{name}_proj" for name in PARTS},
    **{f"moe.shared.{name}": f"feed_forward.shared_expert.{name}_proj" for name in PARTS},
}


def spec(config: HfConfig) -> DecoderSpec:
    count, expert, top_k = int(config.need("num_hidden_layers")), mlp_part(config), config.get("num_experts_per_tok", 1)
    routing = RoutingSpec(int(top_k), "sigmoid", norm_topk_prob=False, scales_inputs=True)
    moe = mixture_part(config, int(config.get("num_local_experts", 16)), routing, expert, expert)
    mlp = mlp_part(config, size="intermediate_size_mlp")
    step = int(config.get("interleave_moe_layer_step", 1))
    mixtures = config.get("moe_layers", list(range(step - 1, count, step)))
    parts = [moe if index in mixtures else mlp for index in range(count)]
    layers = tuple(LayerSpec(*pair) for pair in zip(chunked_attentions(config), parts, strict=True))
    return decoder_part(config, layers, rms_norm_part(config), llama_names({}, INSIDE))
