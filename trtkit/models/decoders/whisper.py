"""Whisper's decoder (Radford et al., arXiv:2212.04356)."""

from dataclasses import replace

from trtkit.models.attention import AttentionSpec, CrossSpec, NormSpec
from trtkit.models.hf_config import HfConfig
from trtkit.models.names import BART_LAYER, names
from trtkit.models.parts import decoder_part, plain_mlp_part
from trtkit.models.spec import BlockSpec, DecoderSpec, EmbeddingSpec, LayerSpec, LearnedPositions

HF_CLASS = "WhisperForConditionalGeneration"
ALIASES = {
    "hidden_size": "d_model",
    "intermediate_size": "decoder_ffn_dim",
    "hidden_act": "activation_function",
    "max_position_embeddings": "max_target_positions",
}
DEFAULTS = {"max_position_embeddings": 448, "tie_word_embeddings": True}
# Fields for the encoder, which is another stage, for training, and for generation, which reads generation_config.json.
_OTHERS = """
    num_hidden_layers encoder_layers encoder_attention_heads encoder_ffn_dim encoder_layerdrop decoder_layerdrop
    num_mel_bins classifier_proj_size use_weighted_layer_sum apply_spec_augment mask_time_prob mask_time_length
    mask_time_min_masks mask_feature_prob mask_feature_length mask_feature_min_masks median_filter_width
    forced_decoder_ids"""
_AT, _TO = "model.decoder.", "encoder_attn"
_OUTSIDE = {
    "embedding": _AT + "embed_tokens",
    "position_embedding": _AT + "embed_positions",
    "final_norm": _AT + "layer_norm",
    "lm_head": "proj_out",
}
_CROSS = {"cross.q": f"{_TO}.q_proj", "cross.o": f"{_TO}.out_proj", "cross_norm": f"{_TO}_layer_norm"}
NAMES = names(_AT + "layers.{i}.", _OUTSIDE, {**BART_LAYER, **_CROSS})


def spec(config: HfConfig) -> DecoderSpec:
    for name in _OTHERS.split():
        config.get(name)
    config.refuse("scale_embedding", False)
    heads, count = int(config.get("decoder_attention_heads", 6)), int(config.need("decoder_layers"))
    size, norm = int(config.need("hidden_size")) // heads, NormSpec("layer", 1e-5, has_bias=True)
    attention = AttentionSpec(heads, heads, size, size**-0.5, has_qkv_bias=True, has_key_bias=False)
    cross = CrossSpec(heads, size, int(config.get("max_source_positions", 1500)), size**-0.5)
    layer = LayerSpec(replace(attention, has_output_bias=True), plain_mlp_part(config), cross)
    model = decoder_part(config, (layer,) * count, norm, NAMES)
    projections = (f"{_AT}layers.{index}.{_TO}.{name}_proj." for index in range(count) for name in "kv")
    return replace(
        model,
        block=BlockSpec(norm, ("attention_norm", "cross_norm", "mlp_norm")),
        embedding=EmbeddingSpec(positions=LearnedPositions(model.max_position_embeddings)),
        unused=("model.encoder.", *projections),
    )
