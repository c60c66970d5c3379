"""Decoding that does not wait: a step is launched with the tokens of the last one before the host knows them."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from trtkit.runtime.device import start_copy, to_device
from trtkit.runtime.generation.decoding import are_scattered, decode_call
from trtkit.runtime.generation.tokens import settle
from trtkit.runtime.sampling.failures import reason
from trtkit.runtime.sampling.sampled import NOTHING
from trtkit.runtime.sequences import UNKNOWN

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch

    from trtkit.arrays import Array
    from trtkit.runtime.decoder import Call
    from trtkit.runtime.generation.state import State
    from trtkit.runtime.sequences import Ints


@dataclass(frozen=True, eq=False)
class Flight:
    """Tokens that were drawn and have not arrived. slots, lengths: [R], of the sequences with them.

    tenancies: [R], of the slots at the launch. tokens: [R], where they were drawn. arrive: waits for them on the host.
    """

    slots: Ints
    lengths: Ints
    tenancies: Ints
    tokens: torch.Tensor
    arrive: Callable[[], Array]

    def goes_on(self, state: State) -> Array:
        """Return [R], whether each slot still runs the request that it ran at the launch."""
        is_same: Array = state.running.tenancies[self.slots] == self.tenancies
        return is_same


def can_launch(state: State, ready: Ints) -> bool:
    """Whether `ready`, sorted slots, can run before the tokens in flight are known."""
    if not ready.size or state.running.groups or are_scattered(ready):
        return False
    return state.sampler.can_launch(ready)


def launch(state: State, ready: Ints, last: Flight | None) -> Flight:
    """Run `ready` on the tokens known and those in flight, and draw the next ones; nothing is waited for."""
    slots, sequences = state.slots, state.slots.sequences
    call = decode_call(state, ready)
    if last is not None:
        call = replace(call, there=_ids_there(call, ready, last, last.goes_on(state)))
    logits = state.execution.forward(call)
    logits = logits[:, 0] if logits.dim() == 3 else logits
    if len(ready) < logits.shape[0]:
        logits = logits[to_device(ready - call.first_slot, logits.device)]
    tokens = state.sampler.launch(logits, ready)
    slots.cached[ready] = sequences.lengths[ready]
    sequences.append(ready, np.full(len(ready), UNKNOWN))
    return Flight(ready, sequences.lengths[ready], state.running.tenancies[ready], tokens, start_copy(tokens))


def land(state: State, flight: Flight) -> None:
    """Take the tokens of a flight and end the sequences they complete; drop those of slots that others have now."""
    tokens, goes_on = flight.arrive(), flight.goes_on(state)
    state.statistics.discarded_tokens += int((~goes_on).sum())
    is_good = goes_on & (tokens >= 0)
    slots, lengths = flight.slots[is_good], flight.lengths[is_good]
    for row in np.flatnonzero(goes_on & ~is_good).tolist():
        slot = int(flight.slots[row])
        state.slots.cut(slot, int(flight.lengths[row]) - 1)
        largest = -math.inf if tokens[row] == NOTHING else math.nan
        state.finish(slot, "error", reason(largest, 0, None))
    state.slots.sequences.tokens[slots, lengths - 1] = tokens[is_good]
    settle(state, slots, lengths, [None] * len(slots))


def _ids_there(call: Call, ready: Ints, last: Flight, goes_on: Array) -> torch.Tensor:
    """Return the ids [R, 1] of a call on the device: in flight for those that go on, otherwise known to the host."""
    if len(call.starts) == len(ready) and np.array_equal(ready, last.slots) and goes_on.all():
        ids = last.tokens[:, None]
    else:
        device = last.tokens.device
        ids = to_device(call.ids, device)
        rows = np.flatnonzero(goes_on & np.isin(last.slots, ready))
        ids[to_device(last.slots[rows] - call.first_slot, device), 0] = last.tokens[to_device(rows, device)]
    return ids.clamp(min=0).int()  # a row that failed draws nothing more
