"""What joins the tokens of a sequence: attention, or a layer with a state."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from trtkit.models.recurrent import ConvSpec, DeltaNetSpec
from trtkit.network.blocks.attention import attention_block
from trtkit.network.blocks.delta_net import delta_block
from trtkit.network.blocks.mamba import mamba_block
from trtkit.network.blocks.short_conv import conv_block
from trtkit.network.blocks.states import States

if TYPE_CHECKING:
    from trtkit.models.attention import AttentionSpec
    from trtkit.models.recurrent import RecurrentSpec
    from trtkit.models.spec import LayerSpec
    from trtkit.network.blocks.attention import Encoded
    from trtkit.network.blocks.cache import Past
    from trtkit.network.blocks.positions import Positions
    from trtkit.network.blocks.weights import Weights
    from trtkit.network.graph import Tensor


@dataclass(frozen=True, eq=False)
class Attending:
    """What attention reads besides hidden states.

    encoded: what an encoder gives the layer, if it reads any of that. states: of a recurrent mixer next to it.
    """

    positions: Positions
    past: Past
    encoded: Encoded | None = None
    states: States | None = None


Memory = Attending | States


def mixer_block(weights: Weights, x: Tensor, layer: LayerSpec, memory: Memory) -> tuple[Tensor, dict[str, Tensor]]:
    """Apply a layer's mixer to x [B, S, D]; return [B, S, D], and the updated caches or states by name."""
    if isinstance(memory, States):
        assert layer.recurrent is not None
        return _recurrent_block(weights, x, layer.recurrent, memory)
    if layer.beside is None or memory.states is None:
        return _attention(weights, x, layer.attention, memory)
    (before, after), (own_before, own_after) = layer.beside.attention_factors, layer.beside.factors
    attended, caches = _attention(weights, _times(x, before), layer.attention, memory)
    y, states = _recurrent_block(weights, _times(x, own_before), layer.beside.mixer, memory.states)
    return _times(attended, after) + _times(y, own_after), caches | states


def _times(x: Tensor, factor: float) -> Tensor:
    return x if factor == 1 else x * factor


def _attention(weights: Weights, x: Tensor, spec: AttentionSpec, memory: Attending) -> tuple[Tensor, dict[str, Tensor]]:
    attended, present = attention_block(weights, x, spec, memory.positions, memory.past)
    return attended, dict(present.caches)


def _recurrent_block(
    weights: Weights, x: Tensor, spec: RecurrentSpec, states: States
) -> tuple[Tensor, dict[str, Tensor]]:
    if isinstance(spec, ConvSpec):
        return conv_block(weights, x, spec, states)
    if isinstance(spec, DeltaNetSpec):
        return delta_block(weights, x, spec, states)
    return mamba_block(weights, x, spec, states)
