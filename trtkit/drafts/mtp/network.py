"""Build an MTP module: a layer of the model's own kind that reads embeddings and hidden states."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from trtkit.drafts.layer_network import LayerHead, build_layer_head
from trtkit.drafts.mtp.spec import EMBEDDING_NORM, HIDDEN_NORM, PROJECTION
from trtkit.network.blocks.layer import decoder_layer
from trtkit.network.blocks.norm import norm_block
from trtkit.network.ops.shape import concat

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy as np

    from trtkit.drafts.mtp.spec import MtpSpec
    from trtkit.network.blocks.mixer import Attending
    from trtkit.network.blocks.weights import Weights
    from trtkit.network.decoder_options import DecoderOptions
    from trtkit.network.graph import Graph, Tensor
    from trtkit.network.host_array import Array


def build_network(
    graph: Graph, spec: MtpSpec, known: np.ndarray, arrays: Mapping[str, Array], options: DecoderOptions
) -> None:
    """Add a module to an empty graph, with the inputs and outputs of `build_layer_head`."""
    head = LayerHead(spec.decoder, partial(_layer, spec), gives_normed=True)
    build_layer_head(graph, head, known, arrays, options)


def _layer(
    spec: MtpSpec, weights: Weights, embedded: Tensor, hidden: Tensor, memory: Attending
) -> tuple[Tensor, Mapping[str, Tensor]]:
    """Apply the module to embeddings and hidden states [B, S, D]; return [B, S, D] and its cache."""
    block = spec.decoder.block
    normed = [
        norm_block(weights, EMBEDDING_NORM, embedded, block.norm),
        norm_block(weights, HIDDEN_NORM, hidden, block.norm),
    ]
    x = weights.linear(PROJECTION, concat(normed[::-1] if spec.joins_hidden_first else normed, -1))
    return decoder_layer(weights, x, block, spec.decoder.layers[0], memory)
