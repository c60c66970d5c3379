"""Layers of a model pruned layer by layer (Nemotron-NAS), from their entries in `block_configs`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from trtkit.errors import SourceError
from trtkit.models.attention import AttentionSpec
from trtkit.models.feed_forward import MlpSpec
from trtkit.models.hf_config import HfConfig
from trtkit.models.spec import LayerSpec

_Block = dict[str, object]
_KNOWN = {
    "attention": {"no_op", "n_heads_in_group", "num_key_value_heads"},
    "ffn": {"no_op", "ffn_mult", "intermediate_size", "hidden_act", "gated"},
}
_MULTIPLE = 256
"""Widths by `ffn_mult` are rounded up to a multiple of this. Source: NVIDIA's `modeling_decilm.py`."""


def pruned_layers(config: HfConfig, attention: AttentionSpec, mlp: MlpSpec) -> tuple[LayerSpec, ...]:
    """Return layers by `block_configs`: each has its own key/value heads and width, or lacks one part or both.

    Raises SourceError for missing blocks, unknown parts or sizes, and for parts that were replaced by others.
    """
    blocks, count = config.need("block_configs"), int(config.need("num_hidden_layers"))
    if not isinstance(blocks, list) or len(blocks) != count:
        number = len(blocks) if isinstance(blocks, list) else 0
        raise SourceError(f"`block_configs` has {number} entries for {count} layers", config.where)
    return tuple(_layer(_PrunedLayerReader(config, index, block), attention, mlp) for index, block in enumerate(blocks))


def _layer(block: _PrunedLayerReader, attention: AttentionSpec, mlp: MlpSpec) -> LayerSpec:
    mixer, feed_forward = block.part("attention"), block.part("ffn")
    return LayerSpec(
        None if mixer is None else replace(attention, num_key_value_heads=_kv_heads(block, mixer, attention)),
        None if feed_forward is None else _mlp(block, feed_forward, mlp),
    )


def _kv_heads(block: _PrunedLayerReader, part: _Block, attention: AttentionSpec) -> int:
    """Return a layer's number of key/value heads, from `n_heads_in_group` or `num_key_value_heads`."""
    heads, group = attention.num_attention_heads, block.size(part, "n_heads_in_group")
    number = heads // group if group and heads % group == 0 else block.size(part, "num_key_value_heads")
    if number is None or heads % number or (group and group * number != heads):
        raise block.error("attention", f"does not say how {heads} query heads share key/value heads")
    return number


def _mlp(block: _PrunedLayerReader, part: _Block, mlp: MlpSpec) -> MlpSpec:
    """Return a layer's MLP, with a width from `intermediate_size` or `ffn_mult`."""
    width, multiple = block.size(part, "intermediate_size"), part.get("ffn_mult")
    if width is None:
        if isinstance(multiple, bool) or not isinstance(multiple, int | float) or multiple <= 0:
            raise block.error("ffn", "has no width: neither `intermediate_size` nor `ffn_mult` above 0")
        width = -(-int(2 * multiple * block.hidden_size / 3) // _MULTIPLE) * _MULTIPLE
    if part.get("gated") is False:
        raise block.error("ffn", "is not gated, which is not supported")
    return replace(mlp, intermediate_size=width, activation=str(part.get("hidden_act") or mlp.activation))


class _PrunedLayerReader:
    """One layer's entry in `block_configs`. Errors name its location."""

    def __init__(self, config: HfConfig, index: int, block: Mapping[str, object]) -> None:
        self._where, self._index, self._block = config.where, index, block
        self.hidden_size = int(config.need("hidden_size"))
        others = sorted(set(block) - set(_KNOWN)) if isinstance(block, dict) else ["nothing"]
        if others and (others == ["nothing"] or any(block[name] for name in others)):
            raise self.error("", f"has `{others[0]}`; expected `attention` and `ffn`")

    def error(self, name: str, what: str) -> SourceError:
        key = f"block_configs[{self._index}]" + (f".{name}" if name else "")
        return SourceError(f"`{key}` {what}", self._where)

    def part(self, name: str) -> _Block | None:
        """Return a part's fields; None if it was pruned. Raises SourceError for unsupported fields."""
        part = self._block.get(name)
        if not isinstance(part, dict):
            raise self.error("", f"has no `{name}`")
        if part.get("no_op"):
            return None
        unknown = sorted(key for key in part.keys() - _KNOWN[name] if part[key] not in (None, False))
        if unknown:
            raise self.error(name, f"has `{unknown[0]}`, `{part[unknown[0]]}`, which is not supported")
        return part

    def size(self, part: _Block, name: str) -> int | None:
        """Return a size; None if it is missing. Raises SourceError unless it is a positive integer."""
        value = part.get(name)
        if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
            raise SourceError(f"`block_configs[{self._index}]` has a `{name}` of `{value}`", self._where)
        return value
