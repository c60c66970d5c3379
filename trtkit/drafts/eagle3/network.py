"""Build an EAGLE-3 head: a one-layer network that guesses the next token from the model's hidden states."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from trtkit.drafts.layer_network import LayerHead, build_layer_head
from trtkit.network.blocks.attention import attention_block
from trtkit.network.blocks.mixture import feed_forward_block
from trtkit.network.blocks.norm import norm_block
from trtkit.network.ops.shape import concat

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy as np

    from trtkit.drafts.eagle3.spec import Eagle3Spec
    from trtkit.network.blocks.mixer import Attending
    from trtkit.network.blocks.weights import Weights
    from trtkit.network.decoder_options import DecoderOptions
    from trtkit.network.graph import Graph, Tensor
    from trtkit.network.host_array import Array


def build_network(
    graph: Graph, spec: Eagle3Spec, known: np.ndarray, arrays: Mapping[str, Array], options: DecoderOptions
) -> None:
    """Add a head to an empty graph, with the inputs and outputs of `build_layer_head`.

    known: [V'], the model's token ids that the head can guess, in its order.
    """
    head = LayerHead(spec.decoder, partial(_layer, spec), gives_normed=spec.has_normed_output)
    build_layer_head(graph, head, known, arrays, options)


def _layer(
    spec: Eagle3Spec, weights: Weights, embedded: Tensor, hidden: Tensor, memory: Attending
) -> tuple[Tensor, Mapping[str, Tensor]]:
    """Apply the head's layer to embeddings and hidden states [B, S, D]; return [B, S, D] and its cache."""
    layer, norm = spec.decoder.layers[0], spec.decoder.block.norm
    normed = norm_block(weights, "hidden_norm", hidden, norm)
    joined = concat([norm_block(weights, "attention_norm", embedded, norm), normed], -1)
    attended, present = attention_block(weights, joined, layer.attention, memory.positions, memory.reaches)
    x = (normed if spec.has_normed_residual else hidden) + attended
    assert layer.feed_forward is not None
    return x + feed_forward_block(weights, norm_block(weights, "mlp_norm", x, norm), layer.feed_forward), present
