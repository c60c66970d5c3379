"""EXAONE 4: norms after attention and MLP; no positions in full layers among sliding ones. HF: `Exaone4ForCausalLM`."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from trtkit.errors import SourceError
from trtkit.models.hf_config import FIX
from trtkit.models.names import POST_NORMS, llama_names
from trtkit.models.parts import (
    alternating_types,
    attention_part,
    decoder_part,
    layers_part,
    mlp_part,
    rms_norm_part,
    sliding_windows,
)
from trtkit.models.rope import rope_spec
from trtkit.models.spec import BlockSpec

if TYPE_CHECKING:
    from trtkit.models.hf_config import HfConfig
    from trtkit.models.parts import Window
    from trtkit.models.spec import DecoderSpec

DEFAULTS = {"num_key_value_heads": 32, "rms_norm_eps": 1e-5, "sliding_window": 4096, "sliding_window_pattern": 4}


def spec(config: HfConfig) -> DecoderSpec:
    """Return the model that a config describes."""
    norm = rms_norm_part(config)
    attention = replace(attention_part(config), norm=norm, qk_norm="head")
    rope = rope_spec(config, attention.head_dim)
    windows = _windows(config)
    ropes = [rope if window or config.get("sliding_window") is None else None for window in windows]
    layers = layers_part(config, attention, mlp_part(config), ropes, windows)
    model = decoder_part(config, layers, norm, llama_names({}, POST_NORMS))
    return replace(model, block=BlockSpec(norm, tuple(POST_NORMS)))


def _windows(config: HfConfig) -> list[Window]:
    """Return each layer's window. Raises SourceError for a pattern of letters, `LLLG`, without `layer_types`."""
    pattern = config.get("sliding_window_pattern")
    if config.get("sliding_window") is None:
        return [None] * len(sliding_windows(config))
    if config.get("layer_types") is not None:
        return sliding_windows(config)
    if not isinstance(pattern, int) or pattern < 1:
        raise SourceError(f"`sliding_window_pattern` is `{pattern}` without `layer_types`", config.where, FIX)
    return sliding_windows(config, alternating_types(config, pattern))
