"""OPT: learned positions, stored from row 2 on; the 350m model is post-norm."""

from dataclasses import replace

from trtkit.models.attention import NormSpec
from trtkit.models.hf_config import HfConfig
from trtkit.models.names import BART_LAYER, names
from trtkit.models.parts import attention_part, decoder_part, layers_part, plain_mlp_part
from trtkit.models.spec import BlockSpec, DecoderSpec, EmbeddingSpec, LearnedPositions

HF_CLASS = "OPTForCausalLM"
ALIASES = {"intermediate_size": "ffn_dim", "hidden_act": "activation_function"}
DEFAULTS = {"hidden_act": "relu", "tie_word_embeddings": True}
_AT = "model.decoder."
_OUTSIDE = {
    "embedding": _AT + "embed_tokens",
    "position_embedding": _AT + "embed_positions",
    "final_norm": _AT + "final_layer_norm",
    "lm_head": "lm_head",
}
NAMES = names(_AT + "layers.{i}.", _OUTSIDE, BART_LAYER)


def spec(config: HfConfig) -> DecoderSpec:
    config.refuse("word_embed_proj_dim", config.need("hidden_size"))
    config.refuse("_remove_final_layer_norm", False)
    has_bias, is_affine = bool(config.get("enable_bias", True)), bool(config.get("layer_norm_elementwise_affine", True))
    is_post_norm = not config.get("do_layer_norm_before", True)
    norm = NormSpec("layer", 1e-5, has_weight=is_affine, has_bias=is_affine)
    attention = attention_part(config, has_qkv_bias=has_bias, has_output_bias=has_bias)
    layers = layers_part(config, attention, plain_mlp_part(config, has_bias=has_bias), None)
    model = decoder_part(config, layers, norm, NAMES)
    return replace(
        model,
        embedding=EmbeddingSpec(positions=LearnedPositions(model.max_position_embeddings, offset=2)),
        block=BlockSpec(norm, is_post_norm=is_post_norm),
        head=replace(model.head, norm=None if is_post_norm else norm),
    )
