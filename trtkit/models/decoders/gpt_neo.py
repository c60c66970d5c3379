"""GPT-Neo: unscaled scores, sliding attention in some layers."""

from dataclasses import replace

from trtkit.errors import SourceError
from trtkit.models.hf_config import HfConfig
from trtkit.models.names import gpt2_names
from trtkit.models.parts import Window, attention_part, decoder_part, layer_norm_part, layers_part, plain_mlp_part
from trtkit.models.spec import DecoderSpec, EmbeddingSpec, LearnedPositions

HF_CLASS = "GPTNeoForCausalLM"
ALIASES = {
    "num_hidden_layers": "num_layers",
    "num_attention_heads": "num_heads",
    "hidden_act": "activation_function",
    "layer_norm_eps": "layer_norm_epsilon",
}
DEFAULTS = {"hidden_act": "gelu_new", "tie_word_embeddings": True, "max_position_embeddings": 2048}
USUAL_TYPES = [[["global", "local"], 12]]
NAMES = gpt2_names(
    {
        "attention.q": "attn.attention.q_proj",
        "attention.k": "attn.attention.k_proj",
        "attention.v": "attn.attention.v_proj",
        "attention.o": "attn.attention.out_proj",
        "mlp.up": "mlp.c_fc",
        "mlp.down": "mlp.c_proj",
    }
)


def spec(config: HfConfig) -> DecoderSpec:
    attention = replace(attention_part(config, has_output_bias=True), scale=1.0)
    layers = layers_part(config, attention, plain_mlp_part(config), None, _windows(config))
    model = decoder_part(config, layers, layer_norm_part(config), NAMES)
    positions = EmbeddingSpec(positions=LearnedPositions(model.max_position_embeddings))
    return replace(model, embedding=positions, prefix="transformer.")


def _windows(config: HfConfig) -> list[Window]:
    """Return each layer's window. Raises SourceError for unknown types, and unless there is one per layer."""
    config.get("attention_layers")  # transformers derives it from `attention_types`
    groups = config.get("attention_types", USUAL_TYPES)
    kinds = [kind for kinds, count in groups for _ in range(int(count)) for kind in kinds]
    if len(kinds) != (count := config.need("num_hidden_layers")):
        raise SourceError(f"`attention_types` describes {len(kinds)} layers of {count}", config.where)
    for kind in kinds:
        if kind not in ("global", "local"):
            raise config.unsupported("attention_types", kind, ("global", "local"))
    window = int(config.get("window_size", 256))
    if window < 1:
        raise SourceError(f"`window_size` is `{window}`; expected at least 1", config.where)
    return [window if kind == "local" else None for kind in kinds]
