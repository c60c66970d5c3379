"""Build Medusa heads: a network without caches that guesses several tokens from one hidden state."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trtkit.dtypes import FP32
from trtkit.network.blocks.weights import Weights
from trtkit.network.input_spec import BATCH, Axis, InputSpec
from trtkit.network.ops.activation import silu
from trtkit.network.ops.arithmetic import cast
from trtkit.network.ops.shape import concat, reshape, unsqueeze
from trtkit.network.speculators import DRAFT_HIDDEN, of_all_tokens

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy as np

    from trtkit.drafts.medusa.spec import MedusaSpec
    from trtkit.network.decoder_options import DecoderOptions
    from trtkit.network.graph import Graph, Tensor
    from trtkit.network.host_array import Array


def build_network(
    graph: Graph, spec: MedusaSpec, known: np.ndarray, arrays: Mapping[str, Array], options: DecoderOptions
) -> None:
    """Add heads to an empty graph. Input: `draft_hidden_states` [B, D], after the second-to-last token.

    Output: `logits` [B, heads * V] in fp32, those of all heads one after another, lowest for tokens that they cannot
    guess. Head k guesses the token k + 1 places after the last one.

    known: [V'], the model's token ids that the heads can guess, in their order.
    """
    weights = Weights(graph, arrays, options.dtype)
    x = graph.take(InputSpec(DRAFT_HIDDEN, options.dtype.name, (BATCH, Axis("hidden_size", spec.hidden_size)), "stage"))
    ends = []
    for head in range(spec.heads):
        with graph.scope(f"heads.{head}"):
            ends.append(_residual(weights, x, spec))
    if spec.is_shared:
        stacked = concat([unsqueeze(end, 1) for end in ends], 1)
        logits = reshape(_logits(weights, stacked, spec, known), (-1, spec.heads * spec.vocab_size))
    else:
        parts = []
        for head, end in enumerate(ends):
            with graph.scope(f"heads.{head}"):
                parts.append(_logits(weights, end, spec, known))
        logits = concat(parts, -1)
    graph.output(logits, "logits")


def _residual(weights: Weights, x: Tensor, spec: MedusaSpec) -> Tensor:
    """Apply the layers of the current scope's head: x + silu(W x + b)."""
    for layer in range(spec.layers):
        x = x + silu(weights.linear(f"layers.{layer}", x, has_bias=spec.has_bias))
    return x


def _logits(weights: Weights, x: Tensor, spec: MedusaSpec, known: np.ndarray) -> Tensor:
    """Return logits [..., V] of x [..., D] with the matrix in the current scope."""
    with weights.graph.scope("lm_head"):
        logits = cast(weights.product(x, None), FP32)
        scaled = logits * spec.logit_scale if spec.logit_scale != 1 else logits
        return of_all_tokens(scaled, known, spec.vocab_size)
