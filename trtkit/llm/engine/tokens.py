"""From logits to the next token of each sequence, and the ends of sequences."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch

from trtkit.llm.engine.beams import candidates_of_each, place
from trtkit.llm.sampling.sampled import Sampled
from trtkit.runtime.device import to_device

if TYPE_CHECKING:
    from collections.abc import Mapping

    from trtkit.llm.engine.request import Request
    from trtkit.llm.engine.state import State
    from trtkit.llm.sampling.sampled import TokenLogprobs
    from trtkit.llm.scheduler.request import Hypothesis
    from trtkit.llm.scheduler.running import BeamGroup
    from trtkit.llm.scheduler.slots import Bools
    from trtkit.llm.sequences import Ints


def take(state: State, slots: Ints, logits: torch.Tensor, known: Ints | None = None) -> Bools:
    """Draw and append the next token of `slots` [R] from logits [R, V]; return [R], which sequences continue.

    All their other tokens are cached. Beams advance group by group and are never reported as continuing.
    known: tokens [R] that were drawn ahead; negative where none was.
    """
    is_beam = state.running.is_beam[slots]
    if not is_beam.any():
        return _draw(state, slots, logits, known)
    goes_on = np.zeros(len(slots), np.bool_)
    single = np.flatnonzero(~is_beam)
    if single.size:
        of_single = None if known is None else known[single]
        goes_on[single] = _draw(state, slots[single], logits[to_device(single, logits.device)], of_single)
    row_of = {int(slot): row for row, slot in enumerate(slots)}
    groups = {id(group): group for slot in slots[is_beam] if (group := state.running.groups[int(slot)])}
    for group in groups.values():
        advance_beams(state, group, logits[to_device(np.array([row_of[slot] for slot in group.slots]), logits.device)])
    return goes_on


def _draw(state: State, slots: Ints, logits: torch.Tensor, known: Ints | None) -> Bools:
    """Append a token to each slot, drawn unless known; a slot without an allowed token ends with an error."""
    sampled = _sampled(state, slots, logits, known)
    state.slots.cached[slots] = state.slots.sequences.lengths[slots]
    if not sampled.errors:
        return _append(state, slots, sampled.tokens, sampled.logprobs)
    goes_on = np.ones(len(slots), np.bool_)
    for row, error in sampled.errors.items():
        state.scheduler.finish(int(slots[row]), "error", error)
        goes_on[row] = False
    rows = np.flatnonzero(goes_on)
    goes_on[rows] = _append(state, slots[rows], sampled.tokens[rows], sampled.logprobs_of(rows))
    return goes_on


def _sampled(state: State, slots: Ints, logits: torch.Tensor, known: Ints | None) -> Sampled:
    """Return the tokens of `slots`; only unknown ones are drawn."""
    if known is None:
        return state.sampler.sample(logits, slots)
    missing = np.flatnonzero(known < 0)
    if not missing.size:
        return Sampled(known, {}, {})
    drawn, tokens = state.sampler.sample(logits[to_device(missing, logits.device)], slots[missing]), known.copy()
    tokens[missing] = drawn.tokens
    logprobs = {int(missing[row]): report for row, report in drawn.logprobs.items()}
    errors = {int(missing[row]): error for row, error in drawn.errors.items()}
    return Sampled(tokens, logprobs, errors)


def _append(state: State, slots: Ints, tokens: Ints, logprobs: Mapping[int, TokenLogprobs]) -> Bools:
    """Append a token to each slot's sequence and end complete ones."""
    state.sampler.accept(slots, tokens)
    state.slots.sequences.append(slots, tokens)
    return settle(state, slots, state.slots.sequences.lengths[slots], tokens, logprobs)


def settle(state: State, slots: Ints, lengths: Ints, tokens: Ints, logprobs: Mapping[int, TokenLogprobs]) -> Bools:
    """Report `tokens` [R], each the last of the first `lengths` [R] tokens of its slot; end complete sequences.

    Returns [R], which sequences continue. Tokens drawn after an end are dropped.
    """
    sequences, running = state.slots.sequences, state.running
    state.statistics.generated_tokens += len(tokens)
    is_stop = (state.stops[slots] == tokens[:, None]).any(1)
    is_last = is_stop | (lengths >= running.ends[slots])
    is_first = lengths == sequences.prompt_lengths[slots] + 1
    goes_on: Bools = ~is_last
    for row in (is_last | is_first | state.is_watched[slots]).nonzero()[0].tolist():
        end = None if not is_last[row] else "stop" if is_stop[row] else "length"
        goes_on[row] = _tell(state, (int(slots[row]), int(lengths[row])), logprobs.get(row), end)
    return goes_on


def _tell(state: State, place: tuple[int, int], logprobs: TokenLogprobs | None, end: str | None) -> bool:
    """Pass a token to its watcher and metrics; end the sequence if it is complete; return whether it continues.

    place: the slot, and its sequence's length including the token.
    """
    slot, length = place
    request = state.running.requests[slot]
    token = int(state.slots.sequences.tokens[slot, length - 1])
    request.metrics.first_token_s = request.metrics.first_token_s or state.scheduler.clock()
    if logprobs is not None:
        request.logprobs.append(logprobs)
    stop_string = None
    if end != "stop" and request.watcher is not None:
        stop_string = request.watcher.add([token])
    if stop_string is None and end is None:
        return True
    state.slots.cut(slot, length)
    if end == "stop":
        state.scheduler.finish(slot, "stop", token)
    elif stop_string is not None:
        state.scheduler.finish(slot, "stop", stop_string)
    else:
        state.scheduler.finish(slot, "length")
    return False


def advance_beams(state: State, group: BeamGroup[Request], logits: torch.Tensor) -> None:
    """Advance a beam search by one token. logits: [beams, V]; at the first step [1, V], of the prompt."""
    sequences, slots = state.slots.sequences, np.array(group.slots)
    state.slots.cached[slots] = sequences.lengths[slots]
    metrics = group.request.metrics
    metrics.first_token_s = metrics.first_token_s or state.scheduler.clock()
    least = candidates_of_each(group.request.settings)
    scores = state.sampler.process(torch.log_softmax(logits, -1), slots, least)
    assert group.search is not None
    following = group.search.advance(scores, [sequences.generated(slot).tolist() for slot in group.slots])
    if following is None:
        _finish_beams(state, group, group.search.hypotheses)
        return
    placed, copies = place(following.parents, group.slots, group.spare)
    state.fork(copies)
    group.spare = [slot for slot in group.all_slots if slot not in placed]
    sequences.lengths[group.spare] = 0  # so that they are not decoded
    for slot in group.spare:
        state.scheduler.memory.empty(slot)
    group.slots = placed
    tokens = np.array(following.tokens, np.int64)
    state.sampler.accept(np.array(placed), tokens)
    sequences.append(np.array(placed), tokens)
    state.statistics.generated_tokens += len(placed)


def _finish_beams(state: State, group: BeamGroup[Request], answers: tuple[Hypothesis, ...]) -> None:
    """End a beam search with its answers, best first."""
    if not answers:
        state.scheduler.finish(group.slots[0], "error", "no token is allowed: the settings contradict each other here")
        return
    best = answers[0].token_ids
    is_stop = best[-1] in group.request.settings.stop_ids
    state.scheduler.finish(group.slots[0], "stop" if is_stop else "length", best[-1] if is_stop else None)
