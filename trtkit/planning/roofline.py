"""The roofline: the least time that a network can take, and which of compute and memory it is bound by."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from trtkit.planning.counts import GroupCounts, Multilinear, NetworkCounts, Point


class Roof(Protocol):
    """What computes, by its best rates: a GPU by its published ones, or a machine by measured ones."""

    @property
    def bandwidth_bytes_per_s(self) -> float:
        """Bytes a second of its memory."""
        ...

    def rate(self, dtype: str) -> float | None:
        """Return operations a second of matrix products, None if it is not known."""
        ...


@dataclass(frozen=True)
class Floor:
    """The least time. compute_s: None if no rate is known for a type; the floor is then memory's alone."""

    compute_s: float | None
    memory_s: float

    @property
    def seconds(self) -> float:
        """The larger of both."""
        return max(self.memory_s, self.compute_s or 0.0)

    @property
    def bound(self) -> str:
        """What the time is bound by."""
        if self.compute_s is None:
            return "memory, or compute of unknown rate"
        return "compute" if self.compute_s > self.memory_s else "memory"


def floor(counts: NetworkCounts, point: Point, gpu: Roof) -> Floor:
    """Return the least time of a network that is fused as well as can be, at (B, S, T)."""
    return mixed_floor(counts, (point,), gpu)


def mixed_floor(counts: NetworkCounts, parts: Sequence[Point], gpu: Roof) -> Floor:
    """Return the least time of a packed call, whose parts at (B, S, T) read weights, and experts, together."""
    counts = counts.of_step(*parts)
    memory_s = counts.moved_bytes.at(*parts) / gpu.bandwidth_bytes_per_s
    return Floor(_compute_s(counts.products, parts, gpu), memory_s)


def group_floor(group: GroupCounts, point: Point, gpu: Roof) -> Floor:
    """Return the least time of a group's layers on their own, each reading and writing its tensors."""
    return Floor(_compute_s(group.products, (point,), gpu), group.bytes.at(point) / gpu.bandwidth_bytes_per_s)


def unfused_s(counts: NetworkCounts, point: Point, gpu: Roof) -> float:
    """Return the sum of all groups' least times: what to expect where TensorRT fuses nothing."""
    return sum(group_floor(group, point, gpu).seconds for group in counts.of_step(point).groups)


def intensity(group: GroupCounts, point: Point) -> float:
    """Return operations per byte moved."""
    moved = group.bytes.at(point)
    return group.flops.at(point) / moved if moved else 0.0


def compute_bound_batch(counts: NetworkCounts, length: int, gpu: Roof) -> int | None:
    """Return the batch from which on decoding at `length` cached tokens is bound by compute; None if it never is.

    Never: each sequence's cache takes longer to read than its tokens take to compute, at any batch. Both sides are
    lines in the batch, so two points give them; as long as a step reads but chosen experts or
    active neurons, both bend.
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
    """Return the time of the tensor cores, None if a rate is not known."""
    total = 0.0
    for dtype, operations in products.items():
        rate = gpu.rate(dtype)
        if rate is None:
            return None
        total += operations.at(*parts) / rate
    return total
