"""Requests that have slots, with what every step asks of them as arrays."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from trtkit.llm.engine.beams import BeamSearch
    from trtkit.llm.scheduler.request import Request
    from trtkit.llm.scheduler.slots import Bools
    from trtkit.llm.sequences import Ints

_NO_TOKEN = -1


class Group:
    """A request of several beams: the slot of each, one until its prompt is computed."""

    def __init__(self, request: Request, slots: list[int], search: BeamSearch) -> None:
        self.request, self.search = request, search
        self.slots, self.spare = slots[:1], slots[1:]

    @property
    def all_slots(self) -> list[int]:
        """Every slot it holds."""
        return self.slots + self.spare


class Running:
    """Who runs in which slot.

    ends: [slots], the length at which a sequence is complete. stops: [slots, most stop tokens], -1 where fewer.
    is_watched: [slots], whether each token is to be told. is_beam: [slots].
    tenancies: [slots], how often a slot has been taken or left: the same number, the same request.
    """

    def __init__(self, slots: int) -> None:
        self.requests: dict[int, Request] = {}
        self.groups: dict[int, Group] = {}
        self.ends: Ints = np.zeros(slots, np.int64)
        self.stops: Ints = np.full((slots, 1), _NO_TOKEN, np.int64)
        self.is_watched: Bools = np.zeros(slots, np.bool_)
        self.is_beam: Bools = np.zeros(slots, np.bool_)
        self.tenancies: Ints = np.zeros(slots, np.int64)
        self._turns = np.zeros((4, slots))  # the rank of each slot's request, backwards

    @property
    def adapters(self) -> set[int]:
        """The numbers of the adapters that requests run with, 0 for none."""
        return {request.adapter_id.number for request in self.requests.values()}

    def add(self, slot: int, request: Request, end: int) -> None:
        """Let a request run in a slot."""
        stops = request.settings.stop_ids
        missing = len(stops) - self.stops.shape[1]
        if missing > 0:
            self.stops = np.pad(self.stops, ((0, 0), (0, missing)), constant_values=_NO_TOKEN)
        self.stops[slot] = _NO_TOKEN
        self.stops[slot, : len(stops)] = stops
        self.ends[slot] = end
        self.is_watched[slot] = request.watcher is not None or request.settings.params.logprobs is not None
        self.requests[slot] = request
        self._turns[::-1, slot] = request.turn.rank
        self.tenancies[slot] += 1

    def add_group(self, group: Group, end: int) -> None:
        """Let a beam search run in its slots."""
        for slot in group.all_slots:
            self.add(slot, group.request, end)
            self.groups[slot] = group
            self.is_beam[slot] = True

    def remove(self, slot: int) -> Request:
        """Forget what runs in a slot."""
        self.groups.pop(slot, None)
        self.is_beam[slot] = False
        self.tenancies[slot] += 1
        return self.requests.pop(slot)

    def move(self, source: int, target: int) -> None:
        """Let what runs in `source`, no beam, run in `target`."""
        end = int(self.ends[source])
        self.add(target, self.remove(source), end)

    def slots_of(self, request_id: str) -> list[int]:
        """Return the slots that a request holds."""
        return [slot for slot, request in self.requests.items() if request.id == request_id]

    def in_turn(self, slots: Ints) -> list[int]:
        """Return slots in the order of their requests."""
        order: list[int] = slots[np.lexsort(self._turns[:, slots])].tolist()
        return order

    def rank_again(self) -> None:
        """Note that requests have moved to other levels."""
        for slot, request in self.requests.items():
            self._turns[::-1, slot] = request.turn.rank

    def giving_way(self, level: int) -> list[int]:
        """Return the slots of requests below `level`, the first to give way last: of the lowest level, the latest.

        Beam searches keep their slots: they are not worth computing again.
        """
        after = [slot for slot, request in self.requests.items() if request.turn.level > level]
        slots = np.array(after, np.int64)
        return self.in_turn(slots[~self.is_beam[slots]])
