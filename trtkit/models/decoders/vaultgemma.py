"""VaultGemma: Gemma 2 without norms after attention and MLP."""

from trtkit.models.gemma_parts import soft_capped_part
from trtkit.models.hf_config import HfConfig
from trtkit.models.names import SANDWICH_NORMS
from trtkit.models.spec import DecoderSpec

HF_CLASS = "VaultGemmaForCausalLM"
DEFAULTS = {
    "num_key_value_heads": 4,
    "head_dim": 256,
    "max_position_embeddings": 8192,
    "query_pre_attn_scalar": 256,
    "attn_logit_softcapping": 50.0,
    "final_logit_softcapping": 30.0,
    "sliding_window": 4096,
    "tie_word_embeddings": True,
}


def spec(config: HfConfig) -> DecoderSpec:
    return soft_capped_part(config, {name: SANDWICH_NORMS[name] for name in ("attention_norm", "mlp_norm")})
