"""What TensorRT-LLM's names and fields are in transformers, for one architecture."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from trtkit.sources.trtllm.fields import Fields

QkvRows = Literal["apart", "joined", "by key head"]

SAME = ("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "max_position_embeddings")
SIZES = {**{name: name for name in SAME}, "intermediate_size": "intermediate_size"}
GROUPED = {**SIZES, "num_key_value_heads": "num_key_value_heads"}
GROUPS_AND_HEADS = {**GROUPED, "head_size": "head_dim"}


@dataclass(frozen=True)
class Experts:
    """HF's names of experts, all of which one tensor of a layer holds, up first.

    module: what has them by number. shared: HF's module of the expert that all tokens have, if there is one. modes:
    values of `moe.normalization_mode` that are read: 0 for shares as they are, 1 for shares that add up to 1.
    """

    module: str
    gate: str = "gate_proj"
    up: str = "up_proj"
    down: str = "down_proj"
    shared: str | None = None
    modes: tuple[int, ...] = (1,)


@dataclass(frozen=True)
class Family:
    """One architecture as transformers' `model_type`.

    outside, inside: HF's modules by TensorRT-LLM's, without and with `layers` and a number in front. qkv: HF's
    modules of queries, keys and values; one where HF joins them. rows: how it does. sizes: HF's fields by
    TensorRT-LLM's. more: the other fields. positions: the kinds of position embedding that are read. read: fields
    that most architectures may not state. needs: those that must be stated. is_in_out: HF stores matrices [in, out].
    plus_one: norms that are stored with 1 added. swapped: the module that holds gate and up, up first. activations:
    those that may be stated, where transformers always has one.
    """

    model_type: str
    outside: Mapping[str, str]
    inside: Mapping[str, str]
    qkv: tuple[str, ...]
    more: Callable[[Fields], Fields]
    layers: str = "model.layers"
    rows: QkvRows = "apart"
    sizes: Mapping[str, str] = field(default_factory=lambda: GROUPS_AND_HEADS)
    positions: tuple[str, ...] = ("rope_gpt_neox",)
    read: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()
    is_in_out: bool = False
    plus_one: tuple[str, ...] = ()
    swapped: str | None = None
    experts: Experts | None = None
    activations: tuple[str, ...] = ()


APART = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")
