"""What a model costs, as exact functions of batch, new tokens and cached tokens."""

from __future__ import annotations

from collections.abc import Mapping  # noqa: TC003 - counts are read from JSON by their types
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import TYPE_CHECKING, TypeVar

from trtkit.planning.multilinear import NOTHING, Multilinear, total

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from trtkit.planning.multilinear import Point
    from trtkit.planning.paged import CopiedPages
    from trtkit.planning.traffic import GroupCost, NetworkCost


_Point = TypeVar("_Point")
EXPERTS = "experts"
"""The group of all that is done for each expert."""
PAGE_COPIES = "page copies"
"""The group of copies of pages."""


@dataclass(frozen=True)
class Mixture:
    """Experts of which a step reads the chosen ones only.

    copied_bytes: of copies of all experts of the largest layer. growth: bytes of a copy for each byte that is stored.
    Groups and bytes of `NetworkCounts` are those of a step that reads all experts.
    """

    num_experts: int
    top_k: int
    copied_bytes: int
    growth: float = 1.0

    def share(self, point: Point) -> Fraction:
        """Return which share of the experts a step at (B, S, T) reads: one for each choice, all at most."""
        return Fraction(min(point[0] * point[1] * self.top_k, self.num_experts), self.num_experts)


@dataclass(frozen=True)
class GroupCounts:
    """Layers of one kind, each taken on its own. products: operations on tensor cores, by type.

    has_experts: all that it does, it does for each expert.
    """

    name: str
    layers: int
    flops: Multilinear
    products: Mapping[str, Multilinear]
    bytes: Multilinear
    weight_bytes: int
    has_experts: bool = False

    def of_chosen(self, share: Fraction, growth: float) -> GroupCounts:
        """Return the work of a share of the experts, whose weights are copied too. growth: see `Mixture`."""
        products = {name: poly.scaled(share) for name, poly in self.products.items()}
        weight_bytes = round(self.weight_bytes * share)
        copied = Multilinear((2 * round(weight_bytes * growth), *(0,) * 7))
        flops, moved = self.flops.scaled(share), self.bytes.scaled(share) + copied
        return replace(self, flops=flops, products=products, bytes=moved, weight_bytes=weight_bytes)


@dataclass(frozen=True)
class NetworkCounts:
    """A whole network.

    fused_bytes: the fewest bytes it can move; cache_bytes: the part that is read from caches. alive: bytes of results
    that are alive at each step that differs from the others. mixture: None if every step reads all weights.
    copied_bytes: of caches in pages, which a step copies before attention reads them; largest_copy: those of one layer.
    """

    groups: tuple[GroupCounts, ...]
    fused_bytes: Multilinear
    cache_bytes: Multilinear
    alive: tuple[Multilinear, ...]
    mixture: Mixture | None = None
    copied_bytes: Multilinear = NOTHING
    largest_copy: Multilinear = NOTHING

    def of_step(self, point: Point) -> NetworkCounts:
        """Return what a step at (B, S, T) costs, which reads chosen experts only."""
        if self.mixture is None:
            return self
        share = self.mixture.share(point)
        experts = sum(group.weight_bytes for group in self.groups if group.has_experts)
        first, *rest = self.fused_bytes.coefficients
        fused = Multilinear((first - experts + round(experts * share), *rest))
        groups = tuple(
            group.of_chosen(share, self.mixture.growth) if group.has_experts else group for group in self.groups
        )
        return replace(self, groups=groups, fused_bytes=fused, mixture=None)

    def with_gathered_pages(self, pages: CopiedPages) -> NetworkCounts:
        """Return the counts of a network whose layers copy pages: what they cached is read, written and read."""
        copied = self.cache_bytes.scaled(pages.share)
        group = GroupCounts(PAGE_COPIES, pages.layers, NOTHING, {}, copied + copied, 0)
        groups = (*self.groups, *([group] if pages.layers else []))
        largest = self.cache_bytes.scaled(pages.largest)
        return replace(self, groups=groups, copied_bytes=copied, largest_copy=largest)

    @property
    def moved_bytes(self) -> Multilinear:
        """The fewest bytes that a step can move: copies of pages are written and read besides."""
        return total([self.fused_bytes, self.copied_bytes, self.copied_bytes])

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
        """Return the most bytes of results that are alive at once, nothing fused.

        Copies are among them: of chosen experts, and of a layer's pages, as they are and followed by new tokens.
        """
        experts = 0 if self.mixture is None else round(self.mixture.copied_bytes * self.mixture.share(point))
        return max(experts, 2 * self.largest_copy.at(point)) + max((poly.at(point) for poly in self.alive), default=0)


def counts_of(
    costs: Mapping[_Point, NetworkCost],
    fit: Callable[[Mapping[_Point, int]], Multilinear],
    mixture: Mixture | None = None,
) -> NetworkCounts:
    """Return the functions through costs of one network at several points."""
    first = next(iter(costs.values()))

    def by_point(value: Callable[[NetworkCost], int]) -> Multilinear:
        return fit({point: value(cost) for point, cost in costs.items()})

    steps = range(len(first.alive_bytes))
    alive = dict.fromkeys(by_point(lambda cost, i=step: cost.alive_bytes[i]) for step in steps)  # type: ignore[misc]
    return NetworkCounts(
        tuple(_group(name, [(p, cost.groups[name]) for p, cost in costs.items()], fit) for name in first.groups),
        by_point(lambda cost: cost.fused_bytes),
        by_point(lambda cost: cost.cache_bytes),
        tuple(alive),
        mixture,
    )


def _group(
    name: str, costs: Sequence[tuple[_Point, GroupCost]], fit: Callable[[Mapping[_Point, int]], Multilinear]
) -> GroupCounts:
    first = costs[0][1]
    products = {dtype: fit({point: group.products[dtype] for point, group in costs}) for dtype in first.products}
    weights = {group.weight_bytes for _, group in costs}
    assert len(weights) == 1, f"weights of {name} that depend on the inputs"
    flops, moved = (fit({point: getattr(group, key) for point, group in costs}) for key in ("flops", "bytes"))
    has_experts = name == EXPERTS or "/moe/experts/" in name
    return GroupCounts(name, first.layers, flops, products, moved, first.weight_bytes, has_experts)
