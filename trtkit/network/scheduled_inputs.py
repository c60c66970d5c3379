"""The inputs of a decoder that say where tokens stand."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from trtkit.dtypes import INT32
from trtkit.network.input_spec import BATCH, NEW_TOKENS, Axis, InputSpec
from trtkit.network.paged_layers import layers_in_place

if TYPE_CHECKING:
    from trtkit.dtypes import DType
    from trtkit.models.spec import DecoderSpec
    from trtkit.network.decoder_options import DecoderOptions
    from trtkit.network.graph import Graph, Tensor


@dataclass(frozen=True, eq=False)
class ScheduledInputs:
    """The inputs that say where tokens stand, of which a network has those that it reads.

    position_ids, kv_lengths: where a layer attends; position_ids also where positions are added to embeddings, and
    not where pages are read in place and nothing turns.
    rope_position_ids: where the model has M-RoPE. key_positions: where attention reads a part of the caches.
    page_table: where caches are pools of pages.
    token_counts: where the model has recurrent states. visible_lengths: where tokens of an image see each other.
    branch_ends: where new tokens form a tree.
    in_place: numbers of the layers that read pages where they are.
    """

    write_indices: Tensor
    position_ids: Tensor | None = None
    kv_lengths: Tensor | None = None
    rope_position_ids: Tensor | None = None
    key_positions: Tensor | None = None
    page_table: Tensor | None = None
    token_counts: Tensor | None = None
    visible_lengths: Tensor | None = None
    branch_ends: Tensor | None = None
    in_place: frozenset[int] = frozenset()


def scheduled_inputs(graph: Graph, spec: DecoderSpec, options: DecoderOptions) -> ScheduledInputs:
    """Add the inputs that say where tokens stand."""
    ids = options.ids_dtype
    has_sections = options.has_rope_positions and any(
        attention.rope is not None and attention.rope.sections for attention in spec.attentions
    )

    def scheduled(name: str, dtype: DType, *axes: Axis) -> Tensor:
        return graph.take(InputSpec(name, dtype.name, axes, "scheduler"))

    attends, in_place = bool(spec.attentions), layers_in_place(spec, options)
    gathers = len(in_place) < len(spec.attentions)
    has_window = options.has_kv_window or options.page_tokens is not None
    turns = any(
        attention.query_growth or (attention.rope and not (has_sections and attention.rope.sections))
        for attention in spec.attentions
    )
    has_positions = gathers or turns or (spec.is_first_stage and spec.embedding.positions is not None)
    position_ids = scheduled("position_ids", ids, BATCH, NEW_TOKENS) if has_positions else None
    return ScheduledInputs(
        scheduled("write_indices", INT32, BATCH),
        position_ids,
        scheduled("kv_lengths", INT32, BATCH) if attends else None,
        scheduled("rope_position_ids", ids, Axis("rope_sections", 3), BATCH, NEW_TOKENS) if has_sections else None,
        scheduled("key_positions", INT32, Axis("kv_window")) if has_window and gathers else None,
        scheduled("page_table", INT32, BATCH, Axis("row_pages")) if options.page_tokens and attends else None,
        scheduled("token_counts", INT32, BATCH) if spec.states else None,
        scheduled("visible_lengths", INT32, BATCH, NEW_TOKENS) if options.has_visible_lengths and attends else None,
        scheduled("branch_ends", INT32, BATCH, NEW_TOKENS) if options.has_tree and attends else None,
        in_place,
    )
