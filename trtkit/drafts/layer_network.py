"""The network of a draft head that is one decoder layer: inputs and outputs, whatever the layer computes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from trtkit.dtypes import FP32, INT32
from trtkit.network.blocks.mixer import Attending
from trtkit.network.blocks.norm import norm_block
from trtkit.network.blocks.weights import Weights
from trtkit.network.input_spec import BATCH, NEW_TOKENS, Axis, InputSpec
from trtkit.network.layer_inputs import LayerInputs, scheduled_inputs
from trtkit.network.ops.arithmetic import cast
from trtkit.network.ops.gather import embedding, token_at
from trtkit.network.speculators import DRAFT_HIDDEN, NEXT_DRAFT_HIDDEN, of_all_tokens

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import numpy as np

    from trtkit.models.spec import DecoderSpec
    from trtkit.network.decoder_options import DecoderOptions
    from trtkit.network.graph import Graph, Tensor
    from trtkit.network.host_array import Array

    Layer = Callable[[Weights, Tensor, Tensor, Attending], tuple[Tensor, Mapping[str, Tensor]]]


@dataclass(frozen=True)
class LayerHead:
    """A draft head of one layer.

    decoder: the layer, numbered after the model's layers, and the sizes of embedding and head.
    layer: applies the layer to embeddings and hidden states [B, S, D]; returns [B, S, D] and its cache.
    gives_normed: whether the next guess uses the hidden state after the final norm.
    """

    decoder: DecoderSpec
    layer: Layer
    gives_normed: bool


def build_layer_head(
    graph: Graph, head: LayerHead, known: np.ndarray, arrays: Mapping[str, Array], options: DecoderOptions
) -> None:
    """Add a draft head of one layer, with its inputs and outputs, to an empty graph.

    Position i of its cache belongs to token i + 1 and the model's hidden state after token i. Inputs are those of a
    one-layer decoder (`build_decoder`), where `input_ids` are the next tokens, and `draft_hidden_states` [B, S, D].
    Outputs, for the tokens at `last_token_index`: `logits` [B, V] in fp32, lowest for tokens that the head cannot
    guess, and `next_draft_hidden_states` [B, D], the input of the next guess; and the layer's cache.

    known: [V'], the model's token ids that the head can guess, in its order.
    """
    decoder = head.decoder
    (index, layer_spec), *_ = decoder.numbered_layers
    weights = Weights(graph, arrays, options.dtype, decoder.is_in_out, experts=options.experts)
    ids = graph.take(InputSpec("input_ids", options.ids_dtype.name, (BATCH, NEW_TOKENS), "request"))
    axes = (BATCH, NEW_TOKENS, Axis("hidden_size", decoder.hidden_size))
    hidden = graph.take(InputSpec(DRAFT_HIDDEN, options.dtype.name, axes, "stage"))
    memory = LayerInputs(weights, options, scheduled_inputs(graph, decoder, options)).of(index, layer_spec)
    assert isinstance(memory, Attending)
    with graph.scope("embedding"):
        embedded = embedding(ids, weights.get("weight"))
    with graph.scope(f"layers.{index}"):
        x, present = head.layer(weights, embedded, hidden, memory)
    for name, tensor in present.items():
        graph.output(tensor, f"present_{name}_{index}")
    x = token_at(x, graph.take(InputSpec("last_token_index", INT32.name, (BATCH,), "scheduler")))
    assert decoder.head.norm is not None
    normed = norm_block(weights, "final_norm", x, decoder.head.norm)
    graph.output(normed if head.gives_normed else x, NEXT_DRAFT_HIDDEN)
    with graph.scope("lm_head"):
        logits = cast(weights.product(normed, None), FP32)
        graph.output(of_all_tokens(logits, known, decoder.vocab_size), "logits")
