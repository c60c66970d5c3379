"""Recurrent layers from configs, which layers have one, and their checkpoint names."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from trtkit.errors import SourceError
from trtkit.models.feed_forward import MlpSpec, MoeSpec
from trtkit.models.hf_config import HfConfig
from trtkit.models.parts import biased_attention_part, decoder_part, layer_types, layers_part, rms_norm_part
from trtkit.models.recurrent import ConvSpec, DeltaNetSpec, MambaSpec, RecurrentSpec
from trtkit.models.rope import rope_spec
from trtkit.models.spec import BlockSpec, DecoderSpec, LayerSpec

DELTA_NAMES = {
    "delta.qkvz": "linear_attn.in_proj_qkvz",
    "delta.ba": "linear_attn.in_proj_ba",
    "delta.qkv": "linear_attn.in_proj_qkv",
    "delta.z": "linear_attn.in_proj_z",
    "delta.b": "linear_attn.in_proj_b",
    "delta.a": "linear_attn.in_proj_a",
    "delta.taps": "linear_attn.conv1d",
    "delta.dt_bias": "linear_attn.dt_bias",
    "delta.a_log": "linear_attn.A_log",
    "delta.norm": "linear_attn.norm",
    "delta.out": "linear_attn.out_proj",
}
"""A gated delta net, with Qwen's names."""
KIMI_DELTA_NAMES = {
    **{f"delta.{name}": f"self_attn.{name}_proj" for name in "qkvb"},
    "delta.taps": "self_attn.conv1d",
    "delta.decay_in": "self_attn.forget_gate.f_a_proj",
    "delta.decay_out": "self_attn.forget_gate.f_b_proj",
    "delta.gate_in": "self_attn.g_a_proj",
    "delta.gate_out": "self_attn.g_b_proj",
    "delta.dt_bias": "self_attn.forget_gate.dt_bias",
    "delta.a_log": "self_attn.forget_gate.A_log",
    "delta.norm": "self_attn.o_norm",
    "delta.out": "self_attn.o_proj",
}
"""Kimi's delta attention."""
MAMBA_NAMES = {
    "mamba.in": "mamba.in_proj",
    "mamba.taps": "mamba.conv1d",
    "mamba.dt_bias": "mamba.dt_bias",
    "mamba.a_log": "mamba.A_log",
    "mamba.d": "mamba.D",
    "mamba.norm": "mamba.norm",
    "mamba.out": "mamba.out_proj",
}
"""A Mamba-2 layer, with Bamba's and Granite's names."""
BAMBA_MLP_NAMES = {
    "mlp_norm": "pre_ff_layernorm",
    **{f"mlp.{name}": f"feed_forward.{name}_proj" for name in ("gate", "up", "down")},
}
"""An MLP, with Bamba's and Falcon-H1's names."""
_NO_LIMIT = [0.0, math.inf], [0.0, {"__float__": "Infinity"}]
# `residual_in_fp32` affects rounding only: here residual sums have the network's type.
_OF_TRAINING = ("rescale_prenorm_residual", "residual_in_fp32", "time_step_floor", "time_step_max")
# transformers does not load the layers that predict later tokens.
_OF_LATER_TOKENS = ("mtp_num_hidden_layers", "mtp_use_dedicated_embeddings")
_KIMI_LAYERS = ("full_attn_layers", "kda_layers")
_SECTIONS = ("mrope_section", "mrope_interleaved")


def conv_part(config: HfConfig) -> ConvSpec:
    """Return LFM2's convolution. Raises SourceError for a kernel of one token."""
    kernel, has_bias = _kernel(config, "conv_L_cache", 3), bool(config.get("conv_bias", False))
    return ConvSpec(int(config.need("hidden_size")), kernel, has_bias)


def delta_net_part(config: HfConfig) -> DeltaNetSpec:
    """Return Qwen's gated delta net. Raises SourceError if key heads cannot be shared equally by value heads."""
    key_heads = int(config.get("linear_num_key_heads", 16))
    value_heads = int(config.get("linear_num_value_heads", 32))
    if key_heads < 1 or value_heads < 1 or value_heads % key_heads:
        what = f"`linear_num_value_heads` is {value_heads}, not a multiple of `linear_num_key_heads`, {key_heads}"
        raise SourceError(what, config.where)
    return DeltaNetSpec(
        key_heads,
        value_heads,
        int(config.get("linear_key_head_dim", 128)),
        int(config.get("linear_value_head_dim", 128)),
        _kernel(config, "linear_conv_kernel_dim", 4),
        str(config.get("hidden_act", "silu")),
        rms_norm_part(config).eps,
    )


def kimi_delta_part(config: HfConfig) -> DeltaNetSpec:
    """Return Kimi's delta attention, from `linear_attn_config` or the fields that transformers writes."""
    stated = config.get("linear_attn_config", {})
    unknown = sorted(stated.keys() - {"head_dim", "num_heads", "short_conv_kernel_size", *_KIMI_LAYERS})
    if unknown:
        raise SourceError(f"`linear_attn_config` has `{unknown[0]}`, which is not known", config.where)
    usual = (config.get(f"linear_{name}", size) for name, size in (("head_dim", 128), ("num_heads", 32)))
    size, heads = (
        int(stated.get(name, usual_value)) for name, usual_value in zip(("head_dim", "num_heads"), usual, strict=True)
    )
    usual_kernel = _kernel(config, "linear_conv_kernel_dim", 4)
    kernel = int(stated.get("short_conv_kernel_size", usual_kernel))
    if min(size, heads, kernel - 1) < 1:
        raise SourceError(f"{heads} heads of {size} with taps of {kernel} tokens are not supported", config.where)
    act, eps = str(config.get("hidden_act", "silu")), rms_norm_part(config).eps
    return DeltaNetSpec(heads, heads, size, size, kernel, act, eps, is_by_channel=True)


def kimi_layer_types(config: HfConfig) -> list[str]:
    """Return each layer's type, from `layer_types` or the 1-based lists in `linear_attn_config`.

    Raises SourceError for layers that are listed twice or not at all.
    """
    count, stated = int(config.need("num_hidden_layers")), config.get("linear_attn_config", {})
    usual = ["full_attention" if index and index % 4 == 0 else "linear_attention" for index in range(count)]
    if all(name in stated for name in _KIMI_LAYERS):
        if sorted(number for name in _KIMI_LAYERS for number in stated[name]) != list(range(1, count + 1)):
            what = f"`linear_attn_config` does not list each of {count} layers once"
            raise SourceError(what, config.where, "correct `full_attn_layers` and `kda_layers`")
        full = set(stated[_KIMI_LAYERS[0]])
        usual = ["full_attention" if index + 1 in full else "linear_attention" for index in range(count)]
    return layer_types(config, usual, ("linear_attention", "full_attention"))


def mamba_part(config: HfConfig, *, width: int | None = None, has_own_width: bool = False) -> MambaSpec:
    """Return the Mamba-2 layer of Bamba and Granite. Raises SourceError for sizes that do not fit.

    width: of all heads together; None for `mamba_expand` times the hidden size. has_own_width: it may be any.
    `mamba_chunk_size` is ignored: it does not affect the result.
    """
    for name in _OF_TRAINING:
        config.get(name)
    config.get("mamba_chunk_size")
    config.refuse("time_step_limit", *_NO_LIMIT)  # transformers applies it to prompts only
    usual, heads = int(config.get("mamba_expand", 2)) * int(config.need("hidden_size")), _need(config, "mamba_n_heads")
    width = width or usual
    stated, groups = config.get("mamba_d_head"), _need(config, "mamba_n_groups")
    size = width // heads if stated in (None, "auto") else int(stated)
    if heads * size != width and not has_own_width:
        raise SourceError(f"{heads} heads of {size} are not the layer's width, {width}", config.where)
    if heads % groups:
        raise SourceError(f"`mamba_n_heads` is {heads}, not a multiple of `mamba_n_groups`, {groups}", config.where)
    has_bias = bool(config.get("mamba_proj_bias", False))
    return MambaSpec(
        heads,
        size,
        groups,
        _need(config, "mamba_d_state"),
        _kernel(config, "mamba_d_conv", 4),
        str(config.get("hidden_act", "silu")),
        rms_norm_part(config).eps,
        has_bias,
        has_bias,
        bool(config.get("mamba_conv_bias", True)),
    )


def delta_net_decoder(
    config: HfConfig,
    feed_forward: MlpSpec | MoeSpec,
    delta: DeltaNetSpec,
    names: Mapping[str, str],
    sections: tuple[int, ...] = (),
) -> DecoderSpec:
    """Return a decoder of gated delta nets, with gated attention in every fourth layer or as `layer_types` states.

    sections: M-RoPE's, if the config states none; empty for a family without images.
    """
    config.refuse("attn_output_gate", True)
    for name in _OF_LATER_TOKENS:
        config.get(name)
    norm = replace(rms_norm_part(config), weight_offset=1.0)
    attention = replace(biased_attention_part(config), norm=norm, qk_norm="head", is_gated=True)
    every = int(config.get("full_attention_interval", 4))
    count = int(config.need("num_hidden_layers"))
    usual = ["linear_attention" if (index + 1) % every else "full_attention" for index in range(count)]
    types = layer_types(config, usual, ("linear_attention", "full_attention"))
    ignored = _SECTIONS[bool(sections) :]
    rope = rope_spec(config, attention.head_dim, partial=0.25, default_sections=sections, ignored=ignored)
    layers = with_mixer(layers_part(config, attention, feed_forward, rope), types, "linear_attention", delta)
    return replace(decoder_part(config, layers, norm, names), block=BlockSpec(norm), unused=("mtp.", "model.visual."))


def with_mixer(
    layers: tuple[LayerSpec, ...], types: Sequence[str], kind: str, mixer: RecurrentSpec
) -> tuple[LayerSpec, ...]:
    """Return `layers` with `mixer` in those whose type is `kind`."""
    pairs = zip(layers, types, strict=True)
    return tuple(replace(layer, mixer=mixer) if layer_kind == kind else layer for layer, layer_kind in pairs)


def factor(config: HfConfig, name: str) -> float:
    """Return a factor, 1 if the config has none."""
    return float(config.get(name, 1.0))


def factor_list(config: HfConfig, name: str, count: int) -> tuple[float, ...]:
    """Return `count` factors, all 1 if the config has none. Raises SourceError for another number of them."""
    stated = config.get(name, [1.0] * count)
    if len(stated) != count:
        raise SourceError(f"`{name}` has {len(stated)} entries; expected {count}", config.where)
    return tuple(float(value) for value in stated)


def _need(config: HfConfig, name: str) -> int:
    """Return a size. Raises SourceError if it is below 1."""
    size = int(config.need(name))
    if size < 1:
        raise SourceError(f"`{name}` is {size}; expected 1 or more", config.where)
    return size


def _kernel(config: HfConfig, name: str, usual: int) -> int:
    """Return how many tokens a convolution reads. Raises SourceError if it is less than 2."""
    kernel = int(config.get(name, usual))
    if kernel < 2:
        raise SourceError(f"`{name}` is {kernel}; expected 2 or more", config.where)
    return kernel
