"""Build a bigram head: `input_ids` [B, 1] -> `logits` [B, V]."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trtkit.dtypes import FP32
from trtkit.network.blocks.weights import Weights
from trtkit.network.input_spec import BATCH, Axis, InputSpec
from trtkit.network.ops.arithmetic import cast
from trtkit.network.ops.gather import embedding
from trtkit.network.ops.shape import reshape

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy as np
    from trtkit.drafts.bigram.spec import BigramSpec

    from trtkit.network.decoder_options import DecoderOptions
    from trtkit.network.graph import Graph
    from trtkit.network.host_array import Array


def build_network(
    graph: Graph, spec: BigramSpec, known: np.ndarray, arrays: Mapping[str, Array], options: DecoderOptions
) -> None:
    """Add a head to an empty graph."""
    ids = graph.take(InputSpec("input_ids", options.ids_dtype.name, (BATCH, Axis("new_tokens", 1)), "request"))
    with graph.scope("table"):
        rows = embedding(ids, Weights(graph, arrays, options.dtype).get("weight"))
        graph.output(cast(reshape(rows, (0, spec.vocab_size)), FP32), "logits")
