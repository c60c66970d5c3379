"""Command R: parallel attention and MLP, interleaved rotary pairs, scaled logits."""

from dataclasses import replace

from trtkit.models.hf_config import HfConfig
from trtkit.models.names import llama_names
from trtkit.models.parts import biased_attention_part, decoder_part, layer_norm_part, layers_part, mlp_part
from trtkit.models.rope import rope_spec
from trtkit.models.spec import BlockSpec, DecoderSpec

HF_CLASS = "CohereForCausalLM"
DEFAULTS = {"tie_word_embeddings": True}


def spec(config: HfConfig) -> DecoderSpec:
    norm = layer_norm_part(config, has_bias=False)
    attention = biased_attention_part(config)
    if config.get("use_qk_norm", False):
        attention = replace(attention, norm=norm, qk_norm="each_head")
    rope = rope_spec(config, attention.head_dim, theta=500000.0, is_interleaved=True)
    layers = layers_part(config, attention, mlp_part(config), rope)
    model = decoder_part(config, layers, norm, llama_names())
    return replace(
        model,
        block=BlockSpec(norm, ("attention_norm",), is_parallel=True),
        head=replace(model.head, logit_scale=float(config.get("logit_scale", 0.0625))),
    )
