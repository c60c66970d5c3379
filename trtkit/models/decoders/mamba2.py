"""Mamba 2: all layers are Mamba-2, without feed-forward parts."""

from dataclasses import replace

from trtkit.models.hf_config import HfConfig
from trtkit.models.names import names
from trtkit.models.parts import decoder_part, rms_norm_part
from trtkit.models.recurrent_parts import MAMBA_NAMES, mamba_part
from trtkit.models.spec import DecoderSpec, LayerSpec

HF_CLASS = "Mamba2ForCausalLM"
_OWN_NAMES = """
    mamba_chunk_size=chunk_size mamba_conv_bias=use_conv_bias mamba_d_conv=conv_kernel mamba_d_head=head_dim
    mamba_d_state=state_size mamba_expand=expand mamba_n_groups=n_groups mamba_n_heads=num_heads
    mamba_proj_bias=use_bias rms_norm_eps=layer_norm_epsilon"""
ALIASES = dict(pair.split("=") for pair in _OWN_NAMES.split())
DEFAULTS = {"mamba_d_head": 64, "mamba_d_state": 128, "mamba_n_groups": 8, "mamba_n_heads": 128, "rms_norm_eps": 1e-5}
OUTSIDE = {"embedding": "backbone.embeddings", "final_norm": "backbone.norm_f", "lm_head": "lm_head"}
INSIDE = {path: name.replace("mamba.", "mixer.") for path, name in MAMBA_NAMES.items()}
NAMES = names("backbone.layers.{i}.", OUTSIDE, {"attention_norm": "norm", **INSIDE})


def spec(config: HfConfig) -> DecoderSpec:
    for name in ("time_step_min", "time_step_rank"):  # for training
        config.get(name)
    layers = (LayerSpec(mamba_part(config), None),) * int(config.need("num_hidden_layers"))
    return replace(decoder_part(config, layers, rms_norm_part(config), NAMES), prefix="backbone.")
