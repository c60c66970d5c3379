"""The order in which one device runs a model's stages on a block of sequences: FlexGen's zig-zag schedule.

A stage computes one token of all micro-batches before the next stage does, so that its weights are loaded once for all
of them. While a micro-batch is computed, the next stage's weights are loaded, the next micro-batch's caches are
fetched, and the last one's are stored. Numbers only: the decoder carries the steps out, and the planner adds up their
times.
Source: https://arxiv.org/abs/2303.06865, section 4.2 and algorithm 1.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Literal, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from trtkit.serving_options import CachePlace

FEWEST_STAGES = 3
"""With two stages, one would compute while the other is loaded: all weights would be in memory."""
_MOST_BUFFERS = 3
"""Micro-batches whose caches are on the device: one is computed, the next is fetched, the last one is stored."""

Lane = Literal["compute", "to_device", "to_host", "read", "write"]
"""Resources that work concurrently: the device, both directions of its link to the host, and those of the disk."""
LANES: tuple[Lane, ...] = ("compute", "to_device", "to_host", "read", "write")


def usual_micro_batch(place: CachePlace, slots: int) -> int:
    """Return the size of a micro-batch that nobody chose: of all slots if caches stay on the device, else a quarter.

    Off the device, its buffers hold three micro-batches.
    """
    return slots if place == "device" else -(-slots // 4)


class Cell(NamedTuple):
    """A stage's share of the work on one token of a micro-batch's sequences."""

    stage: int
    micro_batch: int


@dataclass(frozen=True)
class Step:
    """What happens concurrently; a step ends when all of it is done.

    computes: None in the first step of a pass, which only fetches, and in the last one, which only stores. loads: the
    stage whose weights are being loaded, an equal share in each step of a stage. fetches, stores: cells whose caches
    are copied to the device, and back. unloads: the stage whose weights are dropped at the end.
    """

    computes: Cell | None = None
    loads: int | None = None
    fetches: Cell | None = None
    stores: Cell | None = None
    unloads: int | None = None


@dataclass(frozen=True)
class BlockSchedule:
    """The steps of a block of `micro_batches`: one pass through all `stages` per token.

    The first stage's weights are loaded before the first pass; each pass ends with loading them for the next.
    """

    stages: int
    micro_batches: int

    @property
    def buffers(self) -> int:
        """Number of micro-batches whose caches of a stage are on the device at once, if caches are elsewhere."""
        return min(_MOST_BUFFERS, self.stages * self.micro_batches)

    def buffer(self, cell: Cell) -> int:
        """Return the buffer for a cell's caches, which its two neighbors in the schedule do not use."""
        return (cell.stage * self.micro_batches + cell.micro_batch) % self.buffers

    def steps(self) -> Iterator[Step]:
        """Yield the steps of one pass."""
        cells = [Cell(stage, number) for stage in range(self.stages) for number in range(self.micro_batches)]
        yield Step(fetches=cells[0])
        for index, cell in enumerate(cells):
            yield Step(
                computes=cell,
                loads=(cell.stage + 1) % self.stages,
                fetches=cells[index + 1] if index + 1 < len(cells) else None,
                stores=cells[index - 1] if index else None,
                unloads=cell.stage if cell.micro_batch == self.micro_batches - 1 else None,
            )
        yield Step(stores=cells[-1])


@dataclass(frozen=True)
class StepSeconds:
    """Seconds that each lane needs for a cell's computation, a stage's weights, and a cell's caches in each direction.

    Missing lanes take no time.
    """

    computes: float
    loads: Mapping[Lane, float]
    fetches: Mapping[Lane, float]
    stores: Mapping[Lane, float]


@dataclass(frozen=True)
class PassTime:
    """Duration of a pass. busy: seconds that each lane works; the busiest lane is the bottleneck."""

    seconds: float
    busy: Mapping[Lane, float]

    @property
    def bottleneck(self) -> Lane:
        """The lane that works longest."""
        return max(LANES, key=lambda lane: self.busy[lane])


def pass_time(schedule: BlockSchedule, seconds: StepSeconds) -> PassTime:
    """Return the duration of a pass, in which each step takes as long as its slowest lane."""
    total, busy = 0.0, dict.fromkeys(LANES, 0.0)
    for (computes, loads, fetches, stores), count in _kinds_of_steps(schedule).items():
        lanes = dict.fromkeys(LANES, 0.0)
        lanes["compute"] += computes * seconds.computes
        for share, costs in (
            (loads / schedule.micro_batches, seconds.loads),
            (fetches, seconds.fetches),
            (stores, seconds.stores),
        ):
            for lane, cost in costs.items():
                lanes[lane] += share * cost
        total += count * max(lanes.values())
        for lane in LANES:
            busy[lane] += count * lanes[lane]
    return PassTime(total, busy)


@cache
def _kinds_of_steps(schedule: BlockSchedule) -> Mapping[tuple[bool, bool, bool, bool], int]:
    """Return the number of steps by what they do (compute, load, fetch, store): steps of one kind take equally long."""
    return Counter(
        (step.computes is not None, step.loads is not None, step.fetches is not None, step.stores is not None)
        for step in schedule.steps()
    )
