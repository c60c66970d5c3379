"""Gemma 1: scaled embeddings, norms stored as weight - 1, tied LM head."""

from dataclasses import replace

from trtkit.models.hf_config import HfConfig
from trtkit.models.names import llama_names
from trtkit.models.parts import (
    biased_attention_part,
    decoder_part,
    gemma_mlp_part,
    gemma_norm_part,
    layers_part,
)
from trtkit.models.rope import rope_spec
from trtkit.models.spec import DecoderSpec, EmbeddingSpec

HF_CLASS = "GemmaForCausalLM"
DEFAULTS = {"head_dim": 256, "tie_word_embeddings": True}


def spec(config: HfConfig) -> DecoderSpec:
    norm = gemma_norm_part(config)
    attention = biased_attention_part(config)
    mlp = gemma_mlp_part(config)
    layers = layers_part(config, attention, mlp, rope_spec(config, attention.head_dim))
    model = decoder_part(config, layers, norm, llama_names())
    return replace(model, embedding=EmbeddingSpec(scale=model.hidden_size**0.5))
