"""The roofline model: a lower bound on a network's time, and whether compute or memory bounds it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from trtkit.planning.counts import GroupCounts, Multilinear, NetworkCounts, Point


class Roof(Protocol):
    """A processor with its best rates: a GPU with published ones, or a machine with measured ones."""

    @property
    def bandwidth_bytes_per_s(self) -> float:
        """Memory bandwidth in bytes per second."""
        ...

    def rate(self, dtype: str) -> float | None:
        """Return operations per second of matrix products, None if unknown."""
        ...


@dataclass(frozen=True)
class Floor:
    """A lower bound on time. compute_s: None if a type's rate is unknown; the floor is then that of memory alone."""

    compute_s: float | None
    memory_s: float

    @property
    def seconds(self) -> float:
        """The larger of the two bounds."""
        return max(self.memory_s, self.compute_s or 0.0)

    @property
    def bound(self) -> str:
        """The resource that bounds the time."""
        if self.compute_s is None:
            return "memory, or compute of unknown rate"
        return "compute" if self.compute_s > self.memory_s else "memory"


def floor(counts: NetworkCounts, point: Point, gpu: Roof) -> Floor:
    """Return the minimum time of a perfectly fused network at (B, S, T)."""
    return mixed_floor(counts, (point,), gpu)


def mixed_floor(counts: NetworkCounts, parts: Sequence[Point], gpu: Roof) -> Floor:
    """Return the minimum time of a packed call, whose parts at (B, S, T) read weights and experts once, together."""
    counts = counts.of_step(*parts)
    memory_s = counts.moved_bytes.at(*parts) / gpu.bandwidth_bytes_per_s
    return Floor(_compute_s(counts.products, parts, gpu), memory_s)


def group_floor(group: GroupCounts, point: Point, gpu: Roof) -> Floor:
    """Return the minimum time of a group's layers unfused, each reading and writing its tensors."""
    return Floor(_compute_s(group.products, (point,), gpu), group.bytes.at(point) / gpu.bandwidth_bytes_per_s)


def unfused_s(counts: NetworkCounts, point: Point, gpu: Roof) -> float:
    """Return the sum of all groups' minimum times: what to expect if TensorRT fuses nothing."""
    return sum(group_floor(group, point, gpu).seconds for group in counts.of_step(point).groups)


def intensity(group: GroupCounts, point: Point) -> float:
    """Return operations per byte moved."""
    moved = group.bytes.at(point)
    return group.flops.at(point) / moved if moved else 0.0


def compute_bound_batch(counts: NetworkCounts, length: int, gpu: Roof) -> int | None:
    """Return the batch from which decoding at `length` cached tokens is compute bound; None if there is none.

    There is none if each sequence's cache takes longer to read than its tokens take to compute, at any batch. Both
    sides are linear in the batch, so two points determine them; while a step reads only chosen experts or active
    neurons, both have a bend.
    """
    bends_at = counts.bends_at
    one, two = (floor(counts, (batch, 1, length), gpu) for batch in (bends_at, bends_at + 1))
    if one.compute_s is None or two.compute_s is None:
        return None
    slope = (two.compute_s - one.compute_s) - (two.memory_s - one.memory_s)
    behind = one.memory_s - one.compute_s
    if behind < 0:
        return next(batch for batch in range(1, bends_at + 1) if _is_compute_bound(counts, (batch, 1, length), gpu))
    return bends_at + 1 + int(behind / slope) if slope > 0 else None


def _is_compute_bound(counts: NetworkCounts, point: Point, gpu: Roof) -> bool:
    least = floor(counts, point, gpu)
    return (least.compute_s or 0.0) > least.memory_s


def _compute_s(products: Mapping[str, Multilinear], parts: Sequence[Point], gpu: Roof) -> float | None:
    """Return the tensor cores' time, None if a rate is unknown."""
    total = 0.0
    for dtype, operations in products.items():
        rate = gpu.rate(dtype)
        if rate is None:
            return None
        total += operations.at(*parts) / rate
    return total
