"""Steps of packed decoders: slots that decode, guesses of what follows them, and pieces of prompts share a call."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from trtkit.llm.engine.decoding import decode_call
from trtkit.llm.execution.call import Call
from trtkit.llm.execution.packed import PackedCall, no_rows

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trtkit.llm.engine.drafts import Drafts
    from trtkit.llm.engine.state import State
    from trtkit.llm.scheduler.batch import Chunk
    from trtkit.llm.scheduler.slots import Slots
    from trtkit.llm.sequences import Ints


@dataclass(frozen=True, eq=False)
class MixedCall:
    """A packed call, and which of its logits [N, V] are whose: those of `ready` slots come first, in order.

    firsts: [R], of each slot's last token; those of its guesses come next. drafts: these; None if there are none.
    spans: of each chunk, from its last token only if its prompt is complete, or of all of its tokens if log
    probabilities of the prompt are requested.
    """

    call: PackedCall
    ready: Ints
    firsts: Ints
    drafts: Drafts | None
    chunks: Sequence[Chunk]
    spans: Sequence[slice]


def mixed_call(state: State, ready: Ints, chunks: Sequence[Chunk], drafts: Drafts | None = None) -> MixedCall:
    """Return the call in which `ready`, sorted slots, decode and others read chunks; there may be none of either.

    drafts: guesses of what follows `ready`.
    """
    decode = decode_call(state, ready, drafts, is_captured=not chunks) if ready.size else no_rows()
    at, (rows, width) = ready - decode.first_slot, decode.ids.shape
    counts = decode.counts[at]
    firsts = np.cumsum(counts) - counts
    columns = np.arange(int(counts.sum())) - firsts.repeat(counts)
    wanted, spans, first, count = [at.repeat(counts) * width + columns], [], rows * width, len(columns)
    for chunk in chunks:
        tokens = np.arange(first, first + chunk.count)
        if state.running.requests[chunk.slot].settings.params.prompt_logprobs is None:
            is_complete = chunk.start + chunk.count == state.slots.sequences.lengths[chunk.slot]
            tokens = tokens[-1:] if is_complete else tokens[:0]
        wanted.append(tokens)
        spans.append(slice(count, count + len(tokens)))
        first, count = first + chunk.count, count + len(tokens)
    prompts = no_rows()
    if chunks:
        slots = np.array([chunk.slot for chunk in chunks], np.int64)
        prompts = replace(chunks_call(chunks, state.slots), scattered=slots)
    return MixedCall(PackedCall(decode, prompts, np.concatenate(wanted)), ready, firsts, drafts, chunks, spans)


def chunks_call(chunks: Sequence[Chunk], slots: Slots) -> Call:
    """Return the call that reads chunks."""
    at, starts, counts = (
        np.array([getattr(chunk, name) for chunk in chunks], np.int64) for name in ("slot", "start", "count")
    )
    columns = np.arange(int(counts.max()))
    tokens = slots.sequences.tokens
    places = np.minimum(starts[:, None] + columns, tokens.shape[1] - 1)
    ids = np.where(columns < counts[:, None], tokens[at[:, None], places], 0)
    adapters = slots.sequences.adapters[at]
    return Call(int(at[0]), ids, starts, counts, slots.sequences.soft, adapters=adapters)
