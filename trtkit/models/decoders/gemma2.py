"""Gemma 2: soft-capped scores and logits, sliding attention in every other layer."""

from trtkit.models.gemma_parts import soft_capped_part
from trtkit.models.hf_config import HfConfig
from trtkit.models.names import SANDWICH_NORMS
from trtkit.models.spec import DecoderSpec

HF_CLASS = "Gemma2ForCausalLM"
DEFAULTS = {
    "head_dim": 256,
    "query_pre_attn_scalar": 256,
    "attn_logit_softcapping": 50.0,
    "final_logit_softcapping": 30.0,
    "sliding_window": 4096,
    "tie_word_embeddings": True,
}


def spec(config: HfConfig) -> DecoderSpec:
    return soft_capped_part(config, SANDWICH_NORMS)
