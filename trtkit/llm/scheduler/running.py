"""Requests that have slots, with their per-step facts as arrays."""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic

import numpy as np

from trtkit.llm.scheduler.request import T

if TYPE_CHECKING:
    from trtkit.llm.engine.beams import BeamSearch
    from trtkit.llm.scheduler.slots import Bools
    from trtkit.llm.sequences import Ints


class BeamGroup(Generic[T]):
    """A request with several beams and their slots; a single beam until its prompt is computed.

    search: chooses the beams; set by the engine.
    """

    def __init__(self, request: T, slots: list[int]) -> None:
        self.request = request
        self.slots, self.spare = slots[:1], slots[1:]
        self.search: BeamSearch | None = None

    @property
    def all_slots(self) -> list[int]:
        """All slots it holds."""
        return self.slots + self.spare


class Running(Generic[T]):
    """Which request runs in which slot.

    ends: [slots], the length at which a sequence is complete; 0 for a free slot. is_beam: [slots].
    tenancies: [slots], how often a slot was taken or left; while the number stays the same, so does the request.
    """

    def __init__(self, slots: int) -> None:
        self.requests: dict[int, T] = {}
        self.groups: dict[int, BeamGroup[T]] = {}
        self.ends: Ints = np.zeros(slots, np.int64)
        self.is_beam: Bools = np.zeros(slots, np.bool_)
        self.tenancies: Ints = np.zeros(slots, np.int64)
        self._orders = np.zeros((4, slots))  # sort keys of the slots' requests, last key first, as lexsort takes them
        self._unsorted: set[int] = set()  # slots whose sort key is out of date

    @property
    def adapters(self) -> set[int]:
        """Numbers of the adapters in use, 0 for none."""
        return {request.adapter_id.number for request in self.requests.values()}

    def add(self, slot: int, request: T, end: int) -> None:
        """Put a request into a slot."""
        self.ends[slot] = end
        self.requests[slot] = request
        self._unsorted.add(slot)
        self.tenancies[slot] += 1

    def add_group(self, group: BeamGroup[T], end: int) -> None:
        """Put a beam search into its slots."""
        for slot in group.all_slots:
            self.add(slot, group.request, end)
            self.groups[slot] = group
            self.is_beam[slot] = True

    def remove(self, slot: int) -> T:
        """Remove and return the request in a slot."""
        if self.groups.pop(slot, None) is not None:
            self.is_beam[slot] = False
        self.ends[slot] = 0
        self.tenancies[slot] += 1
        return self.requests.pop(slot)

    def move(self, source: int, target: int) -> None:
        """Let what runs in `source`, no beam, run in `target`."""
        end = int(self.ends[source])
        self.add(target, self.remove(source), end)

    def slots_of(self, request_id: str) -> list[int]:
        """Return the slots that a request holds."""
        return [slot for slot, request in self.requests.items() if request.id == request_id]

    def in_order(self, slots: Ints) -> list[int]:
        """Return slots sorted by the schedule order of their requests."""
        if len(slots) == 1:
            return [int(slots[0])]
        for slot in self._unsorted.intersection(self.requests):
            self._orders[::-1, slot] = self.requests[slot].standing.order
        self._unsorted.clear()
        order: list[int] = slots[np.lexsort(self._orders[:, slots])].tolist()
        return order

    def order_again(self) -> None:
        """Mark all sort keys as out of date, since requests have changed levels."""
        self._unsorted.update(self.requests)

    def to_preempt(self, level: int) -> list[int]:
        """Return the slots of requests below `level`; the last one, the latest on the lowest level, is preempted first.

        Beam searches are exempt: computing them again costs too much.
        """
        lower = [slot for slot, request in self.requests.items() if request.standing.level > level]
        if not lower:
            return []
        slots = np.array(lower, np.int64)
        return self.in_order(slots[~self.is_beam[slots]])
