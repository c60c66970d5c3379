"""XGLM: sinusoidal positions, scaled embeddings."""

from dataclasses import replace

from trtkit.models.attention import NormSpec
from trtkit.models.hf_config import HfConfig
from trtkit.models.names import llama_names
from trtkit.models.parts import attention_part, decoder_part, layers_part, plain_mlp_part
from trtkit.models.spec import DecoderSpec, EmbeddingSpec, SinusoidalPositions

HF_CLASS = "XGLMForCausalLM"
ALIASES = {
    "hidden_size": "d_model",
    "num_hidden_layers": "num_layers",
    "num_attention_heads": "attention_heads",
    "intermediate_size": "ffn_dim",
    "hidden_act": "activation_function",
}
DEFAULTS = {"max_position_embeddings": 2048, "tie_word_embeddings": True, "pad_token_id": 1}
OFFSET = 2
INSIDE = {
    "attention_norm": "self_attn_layer_norm",
    "attention.o": "self_attn.out_proj",
    "mlp_norm": "final_layer_norm",
    "mlp.up": "fc1",
    "mlp.down": "fc2",
}


def spec(config: HfConfig) -> DecoderSpec:
    config.refuse("add_cross_attention", False)
    attention = attention_part(config, has_qkv_bias=True, has_output_bias=True)
    layers = layers_part(config, attention, plain_mlp_part(config), None)
    norm = NormSpec("layer", 1e-5, has_bias=True)
    model = decoder_part(config, layers, norm, llama_names({"final_norm": "model.layer_norm"}, INSIDE))
    padding = config.get("pad_token_id")  # the position with this id has a row of zeros
    positions = SinusoidalPositions(OFFSET, None if padding is None else int(padding) - OFFSET)
    scale = model.hidden_size**0.5 if config.get("scale_embedding", True) else 1.0
    return replace(model, embedding=EmbeddingSpec(scale, positions))
