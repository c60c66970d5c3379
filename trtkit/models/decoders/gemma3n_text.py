"""Gemma 3n, text: several hidden states per token (AltUp), per-layer embeddings, shared caches."""

from dataclasses import replace

from trtkit.models.feed_forward import StreamsSpec
from trtkit.models.gemma_parts import (
    GEMMA3N_NAMES,
    INSIDE,
    OUTSIDE,
    STREAMS,
    gemma3n_layers,
    per_layer_spec,
    unused_weights,
)
from trtkit.models.hf_config import HfConfig
from trtkit.models.names import SANDWICH_NORMS, llama_names
from trtkit.models.parts import decoder_part, rms_norm_part
from trtkit.models.spec import BlockSpec, DecoderSpec, EmbeddingSpec

HF_CLASS = "Gemma3nForCausalLM"
DEFAULTS = {
    "vocab_size": 262400,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "head_dim": 256,
    "max_position_embeddings": 32768,
    "sliding_window": 512,
    "rope_theta": 1e6,
    "rope_local_base_freq": 1e4,
    "tie_word_embeddings": True,
    "num_kv_shared_layers": 15,
}


def spec(config: HfConfig) -> DecoderSpec:
    config.get("altup_coef_clip")  # for training
    norm, layers = rms_norm_part(config), gemma3n_layers(config)
    names = llama_names({**OUTSIDE, **STREAMS}, {**INSIDE, **GEMMA3N_NAMES})
    model = decoder_part(config, layers, norm, names)
    streams = StreamsSpec(
        int(config.get("altup_num_inputs", 4)),
        int(config.get("altup_active_idx", 0)),
        bool(config.get("altup_correct_scale", True)),
        int(config.get("laurel_rank", 64)),
    )
    return replace(
        model,
        block=BlockSpec(norm, tuple(SANDWICH_NORMS), per_layer=per_layer_spec(config), streams=streams),
        head=replace(model.head, softcap=config.get("final_logit_softcapping", 30.0)),
        embedding=EmbeddingSpec(scale=model.hidden_size**0.5),
        unused=unused_weights([layer.attention.cache_of for layer in layers]),
    )
