"""Falcon-H1: attention and Mamba-2 in parallel in every layer."""

from dataclasses import replace

from trtkit.models.hf_config import HfConfig
from trtkit.models.names import llama_names
from trtkit.models.parts import biased_attention_part, decoder_part, layers_part, mlp_part, rms_norm_part
from trtkit.models.recurrent import MambaSpec, ParallelMixer
from trtkit.models.recurrent_parts import BAMBA_MLP_NAMES, MAMBA_NAMES, factor, factor_list, mamba_part
from trtkit.models.rope import rope_spec
from trtkit.models.spec import DecoderSpec, EmbeddingSpec

HF_CLASS = "FalconH1ForCausalLM"
DEFAULTS = {
    "intermediate_size": 14336,
    "mamba_d_head": "auto",
    "mamba_d_ssm": 1024,
    "mamba_d_state": 256,
    "mamba_n_groups": 1,
    "mamba_n_heads": 128,
    "max_position_embeddings": 8192,
    "num_key_value_heads": 8,
    "rms_norm_eps": 1e-5,
}
NAMES = llama_names({"final_norm": "model.final_layernorm"}, {**BAMBA_MLP_NAMES, **MAMBA_NAMES})


def spec(config: HfConfig) -> DecoderSpec:
    """Return the model that a config describes. `key_multiplier` becomes part of the scores' scale."""
    config.get("num_logits_to_keep")  # an option of transformers' generation
    attention, grown = biased_attention_part(config), factor(config, "key_multiplier")
    attention = replace(attention, scale=attention.scale * grown, key_factor=grown)
    gate, down = factor_list(config, "mlp_multipliers", 2)
    mlp = replace(mlp_part(config, has_bias=bool(config.get("mlp_bias", False))), gate_factor=gate, factor=down)
    layers = layers_part(config, attention, mlp, rope_spec(config, attention.head_dim))
    ssm, attended = (
        (factor(config, f"{part}_in_multiplier"), factor(config, f"{part}_out_multiplier"))
        for part in ("ssm", "attention")
    )
    layers = tuple(replace(layer, parallel_mixer=ParallelMixer(_mamba(config), ssm, attended)) for layer in layers)
    model = decoder_part(config, layers, rms_norm_part(config), NAMES)
    head = replace(model.head, logit_scale=factor(config, "lm_head_multiplier"))
    return replace(model, embedding=EmbeddingSpec(scale=factor(config, "embedding_multiplier")), head=head)


def _mamba(config: HfConfig) -> MambaSpec:
    """Return the Mamba-2 layer, with the config's width, factors and norm."""
    mamba = mamba_part(config, width=config.get("mamba_d_ssm"))
    has_output_bias, has_norm = bool(config.get("projectors_bias", False)), bool(config.get("mamba_rms_norm", False))
    is_normed_first = bool(config.get("mamba_norm_before_gate", True))
    mamba = replace(mamba, has_output_bias=has_output_bias, factors=factor_list(config, "ssm_multipliers", 5))
    if not has_norm:
        return replace(mamba, norm="none")
    return replace(mamba, norm="before_gate") if is_normed_first else mamba
