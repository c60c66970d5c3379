"""Build an EAGLE-3 head: a network of one layer that guesses the next token from the model's hidden states."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trtkit.dtypes import FP32, INT32
from trtkit.network.blocks.attention import attention_block
from trtkit.network.blocks.mixer import Attending
from trtkit.network.blocks.mixture import feed_forward_block
from trtkit.network.blocks.norm import norm_block
from trtkit.network.blocks.weights import Weights
from trtkit.network.input_spec import BATCH, NEW_TOKENS, Axis, InputSpec
from trtkit.network.layer_inputs import LayerInputs, scheduled_inputs
from trtkit.network.ops.arithmetic import cast
from trtkit.network.ops.gather import embedding, token_at
from trtkit.network.ops.shape import concat
from trtkit.network.speculators import DRAFT_HIDDEN, NEXT_DRAFT_HIDDEN, of_all_tokens

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy as np

    from trtkit.drafts.eagle3.spec import Eagle3Spec
    from trtkit.network.decoder_options import DecoderOptions
    from trtkit.network.graph import Graph, Tensor
    from trtkit.network.host_array import Array


def build_network(
    graph: Graph, spec: Eagle3Spec, known: np.ndarray, arrays: Mapping[str, Array], options: DecoderOptions
) -> None:
    """Add a head to an empty graph, with its inputs and outputs.

    Position i of its cache is of token i + 1 and the model's hidden states after token i. Inputs are those of a decoder
    of one layer (`build_decoder`), whose `input_ids` are the next tokens, and `draft_hidden_states` [B, S, D].
    Outputs, of the tokens at `last_token_index`: `logits` [B, V] in fp32, lowest for tokens that the head cannot guess,
    and `next_draft_hidden_states` [B, D], which the next guess is made from; and the layer's cache.

    known: [V'], the model's tokens that the head can guess, in its order.
    """
    decoder, index = spec.decoder, spec.layer_index
    weights, D = Weights(graph, arrays, options.dtype), decoder.hidden_size
    ids = graph.take(InputSpec("input_ids", options.ids_dtype.name, (BATCH, NEW_TOKENS), "request"))
    axes = (BATCH, NEW_TOKENS, Axis("hidden_size", D))
    hidden = graph.take(InputSpec(DRAFT_HIDDEN, options.dtype.name, axes, "stage"))
    memory = LayerInputs(weights, options, scheduled_inputs(graph, decoder, options)).of(index, decoder.layers[0])
    assert isinstance(memory, Attending)
    with graph.scope("embedding"):
        embedded = embedding(ids, weights.get("weight"))
    with graph.scope(f"layers.{index}"):
        x, present = _layer(weights, embedded, hidden, spec, memory)
    for name, tensor in present.items():
        graph.output(tensor, f"present_{name}_{index}")
    x = token_at(x, graph.take(InputSpec("last_token_index", INT32.name, (BATCH,), "scheduler")))
    assert decoder.head.norm is not None
    normed = norm_block(weights, "final_norm", x, decoder.head.norm)
    graph.output(normed if spec.has_normed_output else x, NEXT_DRAFT_HIDDEN)
    with graph.scope("lm_head"):
        logits = cast(weights.product(normed, None), FP32)
        graph.output(of_all_tokens(logits, known, decoder.vocab_size), "logits")


def _layer(
    weights: Weights, embedded: Tensor, hidden: Tensor, spec: Eagle3Spec, memory: Attending
) -> tuple[Tensor, Mapping[str, Tensor]]:
    """Apply the head's layer to embeddings and hidden states [B, S, D]; return [B, S, D] and its cache."""
    layer, norm = spec.decoder.layers[0], spec.decoder.block.norm
    normed = norm_block(weights, "hidden_norm", hidden, norm)
    joined = concat([norm_block(weights, "attention_norm", embedded, norm), normed], -1)
    attended, present = attention_block(weights, joined, layer.attention, memory.positions, memory.reaches)
    x = (normed if spec.has_normed_residual else hidden) + attended
    assert layer.feed_forward is not None
    return x + feed_forward_block(weights, norm_block(weights, "mlp_norm", x, norm), layer.feed_forward), present
