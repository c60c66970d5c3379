"""The interface of a model's network and its draft head's: the tensors between them, and the tokens of both."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Protocol, cast

import numpy as np

from trtkit.dtypes import FP32
from trtkit.models.speculators import kind_part
from trtkit.network.blocks.norm import norm_block
from trtkit.network.ops.gather import reorder
from trtkit.network.ops.mask import lowest
from trtkit.network.ops.shape import concat, take

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from trtkit.models.speculators import FusionSpec, SpeculatorSpec
    from trtkit.network.blocks.weights import Weights
    from trtkit.network.decoder_options import DecoderOptions
    from trtkit.network.graph import Graph, Tensor
    from trtkit.network.host_array import Array

DRAFT_HIDDEN, NEXT_DRAFT_HIDDEN = "draft_hidden_states", "next_draft_hidden_states"
"""Hidden states that a draft head reads, and those that the model, or a head for its next guess, outputs for it."""


class _KindNetwork(Protocol):
    """Interface of the `network.py` of a kind of draft head."""

    @staticmethod
    def build_network(
        graph: Graph, spec: SpeculatorSpec, known: np.ndarray, arrays: Mapping[str, Array], options: DecoderOptions
    ) -> None: ...


def build_speculator(
    graph: Graph, spec: SpeculatorSpec, known: np.ndarray, arrays: Mapping[str, Array], options: DecoderOptions
) -> None:
    """Add a draft head, with the inputs and outputs of its kind, to an empty graph.

    spec: of the head. known: [V'], the model's token ids that it can guess, in its order.
    """
    network = cast("_KindNetwork", kind_part(spec.kind, "network"))
    network.build_network(graph, spec, known, arrays, options)


def fused(weights: Weights, inputs: Sequence[Tensor], spec: FusionSpec) -> Tensor:
    """Fuse the hidden states [B, S, D] of several layers into a draft head's input [B, S, its D]."""
    with weights.graph.scope("speculator"):
        states = [inputs[layer] for layer in spec.layers]
        if spec.norm is not None and spec.is_normed_apart:
            states = [norm_block(weights, f"fc_norm.{index}", x, spec.norm) for index, x in enumerate(states)]
        x = concat(states, -1)
        if spec.norm is not None and not spec.is_normed_apart:
            x = norm_block(weights, "input_norm", x, spec.norm)
        return replace(weights, low_rank=None).linear("fc", x, has_bias=spec.has_bias)


def of_all_tokens(logits: Tensor, known: np.ndarray, vocab_size: int) -> Tensor:
    """Return logits [..., V] from those of the tokens `known` [V']; other tokens are never guessed."""
    if len(known) == vocab_size:
        return logits
    rows = np.full(vocab_size, len(known), np.int32)
    rows[known] = np.arange(len(known))
    padded = concat([logits, take(logits, -1, 0, 1) * 0.0 + lowest(FP32)], -1)
    return reorder(padded, rows)
