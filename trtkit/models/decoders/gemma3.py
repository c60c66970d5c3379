"""Gemma 3, text: norms on heads, five sliding layers for each full one. HF: `Gemma3ForCausalLM`."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from trtkit.models.names import SANDWICH_NORMS, llama_names
from trtkit.models.parts import biased_attention_part, decoder_part, gemma_mlp_part, gemma_norm_part, sliding_windows
from trtkit.models.rope import rope_spec
from trtkit.models.spec import BlockSpec, EmbeddingSpec, LayerSpec

if TYPE_CHECKING:
    from trtkit.models.hf_config import HfConfig
    from trtkit.models.spec import DecoderSpec

ALIASES = {"sliding_window_pattern": "_sliding_window_pattern"}
# The published models leave out what is as in HF's `Gemma3TextConfig`.
DEFAULTS = {
    "vocab_size": 262208,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "max_position_embeddings": 131072,
    "query_pre_attn_scalar": 256,
    "sliding_window": 4096,
    "sliding_window_pattern": 6,
    "rope_theta": 1e6,
    "rope_local_base_freq": 1e4,
    "tie_word_embeddings": True,
}


def spec(config: HfConfig) -> DecoderSpec:
    """Return the model that a config describes."""
    norm = gemma_norm_part(config)
    attention = replace(
        biased_attention_part(config),
        scale=float(config.need("query_pre_attn_scalar")) ** -0.5,
        softcap=config.get("attn_logit_softcapping"),
        norm=norm,
        qk_norm="head",
    )
    count, every = int(config.need("num_hidden_layers")), int(config.need("sliding_window_pattern"))
    types = ["sliding_attention" if (index + 1) % every else "full_attention" for index in range(count)]
    windows, H, mlp = sliding_windows(config, types), attention.head_dim, gemma_mlp_part(config)
    far, near = (rope_spec(config, H, layer_type=kind) for kind in ("full_attention", "sliding_attention"))
    kinds = config.get("layer_types", types)
    layers = tuple(
        LayerSpec(replace(attention, rope=far if kind == "full_attention" else near, sliding_window=window), mlp)
        for kind, window in zip(kinds, windows, strict=True)
    )
    model = decoder_part(config, layers, norm, llama_names({}, SANDWICH_NORMS))
    return replace(
        model,
        block=BlockSpec(norm, tuple(SANDWICH_NORMS)),
        head=replace(model.head, softcap=config.get("final_logit_softcapping")),
        embedding=EmbeddingSpec(scale=model.hidden_size**0.5),
    )
