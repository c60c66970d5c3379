"""What a model costs, as exact functions of batch, new tokens and cached tokens."""

from __future__ import annotations

from collections.abc import Mapping  # noqa: TC003 - counts are read from JSON by their types
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from trtkit.planning.multilinear import Multilinear, total

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from trtkit.planning.multilinear import Point
    from trtkit.planning.traffic import GroupCost, NetworkCost


_Point = TypeVar("_Point")


@dataclass(frozen=True)
class Group:
    """Layers of one kind, each taken on its own. products: operations on tensor cores, by type."""

    name: str
    layers: int
    flops: Multilinear
    products: Mapping[str, Multilinear]
    bytes: Multilinear
    weight_bytes: int


@dataclass(frozen=True)
class Counts:
    """A whole network.

    fused_bytes: the least that it moves; cache_bytes: the part that is read from caches. alive: bytes of results that
    are alive at each step that differs from the others.
    """

    groups: tuple[Group, ...]
    fused_bytes: Multilinear
    cache_bytes: Multilinear
    alive: tuple[Multilinear, ...]

    @property
    def flops(self) -> Multilinear:
        """All operations."""
        return total([group.flops for group in self.groups])

    @property
    def products(self) -> dict[str, Multilinear]:
        """Operations on tensor cores, by type."""
        types = dict.fromkeys(name for group in self.groups for name in group.products)
        return {
            name: total([group.products[name] for group in self.groups if name in group.products]) for name in types
        }

    @property
    def weight_bytes(self) -> int:
        """Weights that layers compute with, tables that are only looked up aside."""
        return sum(group.weight_bytes for group in self.groups)

    def activation_bytes(self, point: Point) -> int:
        """Return the most bytes of results that are alive at once, nothing fused."""
        return max((poly.at(point) for poly in self.alive), default=0)


def counts_of(costs: Mapping[_Point, NetworkCost], fit: Callable[[Mapping[_Point, int]], Multilinear]) -> Counts:
    """Return the functions through costs of one network at several points."""
    first = next(iter(costs.values()))

    def by_point(value: Callable[[NetworkCost], int]) -> Multilinear:
        return fit({point: value(cost) for point, cost in costs.items()})

    steps = range(len(first.alive_bytes))
    alive = dict.fromkeys(by_point(lambda cost, i=step: cost.alive_bytes[i]) for step in steps)  # type: ignore[misc]
    return Counts(
        tuple(_group(name, [(p, cost.groups[name]) for p, cost in costs.items()], fit) for name in first.groups),
        by_point(lambda cost: cost.fused_bytes),
        by_point(lambda cost: cost.cache_bytes),
        tuple(alive),
    )


def _group(
    name: str, costs: Sequence[tuple[_Point, GroupCost]], fit: Callable[[Mapping[_Point, int]], Multilinear]
) -> Group:
    first = costs[0][1]
    products = {dtype: fit({point: group.products[dtype] for point, group in costs}) for dtype in first.products}
    weights = {group.weight_bytes for _, group in costs}
    assert len(weights) == 1, f"weights of {name} that depend on the inputs"
    flops, moved = (fit({point: getattr(group, key) for point, group in costs}) for key in ("flops", "bytes"))
    return Group(name, first.layers, flops, products, moved, first.weight_bytes)
