"""Decode steps: one token for every sequence whose prompt has been read, more if speculative guesses are accepted.

In packed decoders, prompt chunks share the call.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import torch

from trtkit.llm.engine.tokens import take
from trtkit.llm.execution.call import Call
from trtkit.llm.execution.packed import PackedCall, no_rows
from trtkit.llm.sequences import UNKNOWN
from trtkit.runtime.device import is_on_host, start_copy, to_device

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trtkit.llm.engine.drafts import Drafts
    from trtkit.llm.engine.proposers import Proposer
    from trtkit.llm.engine.state import State
    from trtkit.llm.scheduler.batch import Chunk
    from trtkit.llm.scheduler.slots import Bools, Slots
    from trtkit.llm.sequences import Ints


def decode(state: State, ready: Ints, proposer: Proposer | None) -> None:
    """Decode `ready`: sorted slots whose last token is the only one not in the cache."""
    state.statistics.synchronous_steps += 1
    drafts = None if proposer is None else drafts_of(state, ready, proposer)
    call = decode_call(state, ready, drafts)
    if drafts is not None:
        mark(state, call)
    logits, hidden = state.execution.forward(call), state.execution.next_hidden
    logits = logits.unsqueeze(1) if logits.dim() == 2 else logits  # [rows, S, V]
    if len(ready) < logits.shape[0]:
        logits = logits[to_device(ready - call.first_slot, logits.device)]
    if drafts is None:
        take(state, ready, logits[:, 0])
    else:
        firsts = np.arange(len(ready)) * logits.shape[1]
        guessed = guessed_of(state, Guessed(ready, drafts, firsts, hidden), logits.flatten(0, 1))
        goes_on = take(state, ready, logits[:, 0], guessed.following)
        verify(state, call, guessed, logits.flatten(0, 1), goes_on)
    if proposer is not None:
        observe(state, call, proposer, hidden)


def observe(state: State, call: Call, proposer: Proposer, hidden: torch.Tensor | None) -> None:
    """Tell a proposer which of the call's tokens were kept in their sequences.

    hidden: [R, S, D], the hidden states that a draft head reads.
    """
    slots = call.slots
    read = np.where(state.slots.is_running[slots] & (call.counts > 0), state.slots.cached[slots] - call.starts, 0)
    proposer.observe(state.slots.sequences, call, np.clip(read, 0, call.counts), hidden)


def decode_call(state: State, ready: Ints, drafts: Drafts | None = None, *, is_captured: bool = True) -> Call:
    """Return the call that decodes `ready`. It spans idle slots between them, which write after their own tokens.

    is_captured: whether the call may run as a CUDA graph, which may take in more idle slots.
    """
    sequences, rows = state.slots.sequences, _rows(state, ready, is_captured=is_captured)
    starts, at = state.slots.cached[rows], ready - rows.start
    width, tree = (1, None) if drafts is None else (1 + drafts.tokens.shape[1], drafts.tree())
    ids, counts = np.zeros((len(starts), width), np.int64), np.zeros(len(starts), np.int64)
    ids[at, 0] = sequences.tokens[ready, starts[at]]
    counts[at] = 1
    if drafts is not None:
        ids[at, 1:] = np.maximum(drafts.tokens, 0)
        counts[at] += drafts.counts
    starts = np.minimum(starts, state.execution.max_length - width)
    tree = None if tree is None else tree.of_rows(at, len(starts))
    return Call(rows.start, ids, starts, counts, sequences.soft, adapters=sequences.adapters[rows], tree=tree)


def _rows(state: State, ready: Ints, *, is_captured: bool = True) -> slice:
    """Return the range of slots that a call for `ready` covers."""
    slots = slice(int(ready[0]), int(ready[-1]) + 1)
    return state.execution.slots_to_run(slots) if is_captured else slots


def drafts_of(state: State, ready: Ints, proposer: Proposer, *, is_captured: bool = True) -> Drafts | None:
    """Return draft tokens for `ready`, sorted slots; None if there are none or no slot has room for them.

    is_captured: whether the call that checks them may run as a CUDA graph, for which they are padded.
    """
    sequences, running, rows = state.slots.sequences, state.running, _rows(state, ready)
    longest = int(state.slots.cached[rows][state.slots.is_running[rows]].max())
    room = min(state.execution.max_length - longest, state.execution.max_prefill_length) - 1
    most = min(proposer.most, room)
    if most <= 0:
        return None
    settings = [running.requests[slot].settings for slot in ready.tolist()]
    left = running.ends[ready] - sequences.lengths[ready] - 1  # nothing follows a request's last token
    left[running.is_beam[ready]] = 0
    drafts = proposer.propose(sequences, ready, settings, most).up_to(left, room)
    width = drafts.tokens.shape[1]
    if not width:
        return None
    if not is_captured or proposer.most_guesses > room:
        return drafts
    return drafts.padded(state.execution.tokens_to_run(1 + width, 1 + proposer.most_guesses) - 1)


@dataclass(frozen=True, eq=False)
class Guessed:
    """Slots [R], their draft tokens, and where the logits [N, V] that check them are.

    firsts: [R], row of the logits of each slot's last token; the rows of its guesses follow.
    hidden: [rows, S, D], the call's hidden states for a draft head, if there is one.
    ahead: [R, 1 + K], the tokens drawn after each slot's last token and after each guess, should it be right; negative
    where none was drawn.
    """

    slots: Ints
    drafts: Drafts
    firsts: Ints
    hidden: torch.Tensor | None
    ahead: Ints | None = None

    @property
    def following(self) -> Ints | None:
        """The tokens [R] drawn after the slots' last tokens."""
        return None if self.ahead is None else self.ahead[:, 0]


def guessed_of(state: State, guessed: Guessed, logits: torch.Tensor) -> Guessed:
    """Return `guessed` with `ahead`: all its tokens are drawn at once from logits [N, V], as if every guess were right.

    The host then waits once a step instead of once per accepted guess. Rows whose draws depend on earlier tokens by
    more than the logits (penalties, guides) are left out; so is everything if the host samples.
    """
    slots, drafts = guessed.slots, guessed.drafts
    is_free = state.sampler.draws_ahead(slots) & ~state.running.is_beam[slots]
    if is_on_host(logits) or not is_free.any():
        return guessed
    counts = np.where(is_free, 1 + drafts.counts, 0)
    rows = np.arange(len(slots)).repeat(counts)
    columns = np.arange(len(rows)) - (np.cumsum(counts) - counts).repeat(counts)
    depths = np.pad(drafts.depths, ((0, 0), (1, 0)))[rows, columns]
    chosen = logits[to_device(guessed.firsts[rows] + columns, logits.device)]
    ahead = np.full((len(slots), 1 + drafts.tokens.shape[1]), UNKNOWN)
    ahead[rows, columns] = start_copy(state.sampler.draw_ahead(chosen, slots[rows], depths))()
    return replace(guessed, ahead=ahead)


def mark(state: State, call: Call) -> None:
    """Save recurrent states before a call that reads guesses, so that `verify` can restore them."""
    if state.execution.cache.has_states:
        state.execution.cache.mark(call.rows)


def verify(state: State, call: Call, guessed: Guessed, logits: torch.Tensor, goes_on: Bools) -> None:
    """Accept guesses: if a slot drew the guessed token, that guess's logits give its next token, and so on.

    Every token is drawn exactly as without speculation, so answers are identical, greedy or sampled. Recurrent states
    that have read wrong guesses are restored to those that `mark` saved.
    call: the one that read the guesses. goes_on: [R], slots that continue after the first token drawn.
    """
    _accept(state, call, guessed, logits, goes_on)
    if state.execution.cache.has_states:
        _rewind(state, guessed.slots[guessed.drafts.counts > 0])


def _accept(state: State, call: Call, guessed: Guessed, logits: torch.Tensor, goes_on: Bools) -> None:
    """Take further tokens of each slot as long as it draws what was guessed."""
    slots, drafts = guessed.slots, guessed.drafts
    sequences = state.slots.sequences
    requests = [state.running.requests.get(slot) for slot in slots.tolist()]
    for request, count in zip(requests, drafts.counts.tolist(), strict=True):
        state.statistics.drafted_tokens += count
        if request is not None:
            request.metrics.drafted += count
    rows, reached = np.arange(len(slots)), np.full(len(slots), -1)
    for index in range(int(drafts.depths.max())):
        rows = rows[goes_on]
        drawn = sequences.tokens[slots[rows], sequences.lengths[slots[rows]] - 1]
        reached[rows] = drafts.children(rows, reached[rows], drawn)
        rows = rows[reached[rows] >= 0]
        if not rows.size:
            return
        columns = reached[rows]
        if (columns > index).any():
            _straighten(state, call, guessed, rows, (columns + 1, index + 1))
        state.statistics.accepted_tokens += len(rows)
        for slot in slots[rows].tolist():
            state.running.requests[slot].metrics.accepted += 1
        chosen = logits[to_device(guessed.firsts[rows] + columns + 1, logits.device)]
        known = None if guessed.ahead is None else guessed.ahead[rows, columns + 1]
        goes_on = take(state, slots[rows], chosen, known)


def _straighten(state: State, call: Call, guessed: Guessed, rows: Ints, places: tuple[Ints, int]) -> None:
    """Move accepted guesses of a tree to the columns of a chain: in the caches, and in `hidden` for the proposer.

    rows: [R], of `guessed.slots`. places: the column [R] of each accepted guess in the call, and its target column.
    """
    (columns, target), slots = places, guessed.slots[rows]
    is_other = columns != target
    rows, columns = slots[is_other] - call.first_slot, columns[is_other]
    starts = call.starts[rows]
    state.execution.cache.move(slots[is_other], starts + columns, starts + target)
    hidden = guessed.hidden
    if hidden is not None:
        row, column = (to_device(indices, hidden.device) for indices in (rows, columns))
        with torch.inference_mode():
            hidden[row, target] = hidden[row, column]


def _rewind(state: State, slots: Ints) -> None:
    """Restore the recurrent states of slots that have read wrong guesses to those before the guesses.

    The next step reads the accepted tokens again, as a prompt chunk, and draws the token that follows.
    """
    cached, positions = state.slots.cached, state.execution.cache.positions
    wrong = slots[positions[slots] != cached[slots]]
    if wrong.size:
        state.execution.cache.rewind(wrong.tolist())
        cached[wrong] = np.minimum(cached[wrong], positions[wrong])


@dataclass(frozen=True, eq=False)
class MixedCall:
    """A packed call and the layout of its logits [N, V]; those of `ready`, the decoding slots, come first, in order.

    firsts: [R], row of each slot's last token; the rows of its guesses follow. drafts: the guesses, or None.
    spans: the rows of each chunk: of its last token if the prompt is complete, none if it is not, and of all its tokens
    if `prompt_logprobs` is requested.
    """

    call: PackedCall
    ready: Ints
    firsts: Ints
    drafts: Drafts | None
    chunks: Sequence[Chunk]
    spans: Sequence[slice]


def mixed_call(state: State, ready: Ints, chunks: Sequence[Chunk], drafts: Drafts | None = None) -> MixedCall:
    """Return the packed call in which `ready`, sorted slots, decode and other slots read chunks; either may be empty.

    drafts: draft tokens for `ready`.
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
    """Return the call that reads prompt chunks, a row each."""
    at, starts, counts = (
        np.array([getattr(chunk, name) for chunk in chunks], np.int64) for name in ("slot", "start", "count")
    )
    columns = np.arange(int(counts.max()))
    tokens = slots.sequences.tokens
    places = np.minimum(starts[:, None] + columns, tokens.shape[1] - 1)
    ids = np.where(columns < counts[:, None], tokens[at[:, None], places], 0)
    adapters = slots.sequences.adapters[at]
    return Call(int(at[0]), ids, starts, counts, slots.sequences.soft, adapters=adapters)
