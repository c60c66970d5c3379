"""Overlapped decoding: a step is launched on the last step's tokens before the host knows them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from trtkit.llm.engine.decoding import decode_call
from trtkit.llm.engine.tokens import settle
from trtkit.llm.scheduler.batch import are_scattered
from trtkit.llm.sequences import UNKNOWN
from trtkit.runtime.device import to_device

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch

    from trtkit.arrays import Array
    from trtkit.llm.engine.state import State
    from trtkit.llm.sampling.sampled import Sampled
    from trtkit.llm.sampling.sampler import LaunchedDraw
    from trtkit.llm.sequences import Ints


@dataclass(frozen=True, eq=False)
class Launched:
    """A launched step. slots, lengths: [R], the slots it ran and their sequences' lengths.

    tenancies: [R], which tenant each slot had at the launch. logits: [R, V]; undefined if the step has drawn all tokens
    and nobody reads them. is_drawn: whether the step itself drew the tokens of rows that do not need the host.
    """

    slots: Ints
    lengths: Ints
    tenancies: Ints
    logits: torch.Tensor
    is_drawn: bool

    def goes_on(self, state: State) -> Array:
        """Return [R]: whether each slot still runs the request it ran at the launch."""
        is_same: Array = state.running.tenancies[self.slots] == self.tenancies
        return is_same


@dataclass(frozen=True, eq=False)
class InFlight:
    """A step's drawn tokens on their way to the host. arrive: waits for them.

    is_counted: whether the device has already counted them for penalties.
    """

    step: Launched
    arrive: Callable[[], Sampled]
    is_counted: bool


def can_launch(state: State, ready: Ints) -> bool:
    """Whether `ready`, sorted slots, can run before the tokens in flight are known; beams cannot."""
    return bool(ready.size) and not state.running.groups and not are_scattered(ready)


def launch(state: State, ready: Ints) -> Launched:
    """Launch a decode step of `ready` on known tokens and tokens in flight, without waiting."""
    execution = state.execution
    call = decode_call(state, ready)
    draw = state.sampler.draw(ready, call.rows)
    logits = execution.forward(call, draw)
    logits = logits[:, 0] if logits.dim() == 3 else logits
    if len(ready) < logits.shape[0] and (draw is None or state.sampler.reads_logits(ready)):
        logits = logits[to_device(ready - call.first_slot, logits.device)]
    return launched_step(state, ready, logits, is_drawn=draw is not None)


def launched_step(state: State, ready: Ints, logits: torch.Tensor, *, is_drawn: bool = False) -> Launched:
    """Record that a step of `ready` was launched, which gives logits [R, V]."""
    lengths = state.slots.sequences.lengths[ready]
    state.slots.cached[ready] = lengths
    return Launched(ready, lengths, state.running.tenancies[ready], logits, is_drawn)


def draw(state: State, step: Launched, decoding: Ints | None = None) -> InFlight:
    """Draw the tokens that the step has not drawn itself; the host knows all earlier tokens by now.

    decoding: the step's slots that decode; all if None.
    """
    decoding = step.slots if decoding is None else decoding
    state.statistics.synchronous_steps += bool(decoding.size) and state.sampler.waits(decoding)
    launched = _draw(state, step)
    return InFlight(step, launched, step.is_drawn or state.sampler.count_drawn(step.slots, launched.tokens))


def begin(state: State, slots: Ints, logits: torch.Tensor) -> InFlight:
    """Draw the first tokens of `slots` [R], whose prompts are complete, from logits [R, V], without waiting."""
    return draw(state, launched_step(state, slots, logits), slots[:0])


def _draw(state: State, step: Launched) -> LaunchedDraw:
    """Draw a step's tokens and append placeholders for them to its sequences."""
    tokens, slots = state.execution.tokens, step.slots
    if step.is_drawn:  # in slot order; the copy includes the slots between them
        first = int(slots[0])
        launched = state.sampler.launch(step.logits, slots, tokens[first : int(slots[-1]) + 1], slots - first)
    else:
        launched = state.sampler.launch(step.logits, slots)
        tokens[_place(slots, tokens)] = launched.tokens
    goes_on = step.goes_on(state)
    state.slots.sequences.append(step.slots if goes_on.all() else step.slots[goes_on], UNKNOWN)
    return launched


def _place(slots: Ints, tokens: torch.Tensor) -> torch.Tensor | slice:
    """Return `slots` as an index on the device of `tokens`; a slice if they are consecutive."""
    first, count = int(slots[0]), len(slots)
    if count == int(slots[-1]) - first + 1 and (count == 1 or bool((slots[1:] > slots[:-1]).all())):
        return slice(first, first + count)
    return to_device(slots, tokens.device)


def collect(state: State, flight: InFlight) -> None:
    """Take a step's tokens and finish the sequences they complete; drop those of slots that have a new tenant."""
    step, sampled = flight.step, flight.arrive()
    goes_on = step.goes_on(state)
    state.statistics.discarded_tokens += len(goes_on) - int(np.count_nonzero(goes_on))
    for row, error in sampled.errors.items():
        if goes_on[row]:
            slot = int(step.slots[row])
            state.slots.cut(slot, int(step.lengths[row]))
            state.scheduler.finish(slot, "error", error)
            goes_on[row] = False
    slots, lengths, tokens, logprobs = step.slots, step.lengths, sampled.tokens, sampled.logprobs
    if not goes_on.all():
        rows = goes_on.nonzero()[0]
        slots, lengths, tokens, logprobs = slots[rows], lengths[rows], tokens[rows], sampled.logprobs_of(rows)
    state.sampler.accept(slots, tokens, is_counted=flight.is_counted)
    state.slots.sequences.tokens[slots, lengths] = tokens
    settle(state, slots, lengths + 1, tokens, logprobs)
