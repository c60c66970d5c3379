"""A model's costs as exact functions of batch, new tokens and cached tokens."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property
from itertools import product
from typing import TYPE_CHECKING, TypeVar

from trtkit.models.feed_forward import ActiveBlocks  # noqa: TC001  # jobs read counts from JSON by its types

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from trtkit.planning.paged import CopiedPages
    from trtkit.planning.traffic import GroupCost, NetworkCost

Point = tuple[int, int, int]
"""Batch B, new tokens per sequence S, cached tokens per slot T."""

_POWERS: tuple[Point, ...] = tuple((b, s, t) for b, s, t in product((0, 1), repeat=3))


@dataclass(frozen=True)
class Multilinear:
    """Coefficients of 1, T, S, S T, B, B T, B S, B S T.

    Each of the three is a factor of a tensor's volume at most once, so a count is a sum of eight monomials, and eight
    measured values determine all of them.
    """

    coefficients: tuple[int, ...] = (0,) * 8

    def at(self, *points: Point) -> int:
        """Return the value at (B, S, T), or for a step with several such parts, where the constant term counts once."""
        value, t, s, s_t, b, b_t, b_s, b_s_t = self.coefficients
        for B, S, T in points:
            value += t * T + s * S + s_t * S * T + B * (b + b_t * T + b_s * S + b_s_t * S * T)
        return value

    def scaled(self, factor: Fraction) -> Multilinear:
        """Return the count times a factor, with rounded coefficients."""
        return Multilinear(tuple(round(coefficient * factor) for coefficient in self.coefficients))

    def __add__(self, other: Multilinear) -> Multilinear:
        pairs = zip(self.coefficients, other.coefficients, strict=True)
        return Multilinear(tuple(a + b for a, b in pairs))


NOTHING = Multilinear()


def total(parts: Sequence[Multilinear]) -> Multilinear:
    """Return the sum."""
    return Multilinear(tuple(sum(column) for column in zip(*(part.coefficients for part in parts), strict=True)))


def sample_points(first: Point, step: int = 1, new_step: int = 1) -> tuple[Point, ...]:
    """Return the eight corners that `fit` needs.

    step, new_step: differences between the two cached lengths, and between the two numbers of new tokens.
    """
    B, S, T = first
    steps = (1, new_step, step)
    corners = [tuple(f + s * p for f, s, p in zip(first, steps, power, strict=True)) for power in _POWERS]
    assert corners[0] == (B, S, T)
    return tuple((corner[0], corner[1], corner[2]) for corner in corners)


def fit(values: Mapping[Point, int]) -> Multilinear:
    """Return the only multilinear function through eight corners, which must be those of one box."""
    axes = [sorted({point[axis] for point in values}) for axis in range(3)]
    table = {power: values[_corner(axes, power)] for power in _POWERS}
    for axis in range(3):
        low, high = axes[axis]
        for power in (power for power in _POWERS if power[axis] == 0):
            other = _raised(power, axis)
            slope, rest = divmod(table[other] - table[power], high - low)
            assert rest == 0, "a count that is not multilinear"
            table[power], table[other] = table[power] - slope * low, slope
    return Multilinear(tuple(table[power] for power in _POWERS))


def fit_batch(values: Mapping[int, int]) -> Multilinear:
    """Return the line through the values at two batch sizes; a constant for a single one."""
    (low, first), *rest = sorted(values.items())
    if not rest:
        return Multilinear((first, *(0,) * 7))
    (high, second) = rest[0]
    slope, remainder = divmod(second - first, high - low)
    assert remainder == 0, "a count that is not linear in the batch"
    return Multilinear((first - slope * low, 0, 0, 0, slope, 0, 0, 0))


def _corner(axes: Sequence[Sequence[int]], power: Point) -> Point:
    assert all(len(axis) == 2 for axis in axes)
    B, S, T = (axis[p] for axis, p in zip(axes, power, strict=True))
    return B, S, T


def _raised(power: Point, axis: int) -> Point:
    B, S, T = (1 if index == axis else p for index, p in enumerate(power))
    return B, S, T


_Point = TypeVar("_Point")
FEED_FORWARD = "mlp"
"""Group of matrix products in feed-forward blocks without experts."""
EXPERTS = "experts"
"""Group of all work that is done per expert."""
PAGE_COPIES, WINDOW_COPIES = "page copies", "window copies"
"""Groups of page copies and of window copies."""


@dataclass(frozen=True)
class Mixture:
    """Experts of which a step reads only the chosen ones.

    copied_bytes: of copies of all experts in the largest layer. growth: bytes of a copy per stored byte. Groups and
    bytes of `NetworkCounts` are those of a step that reads all experts.
    """

    num_experts: int
    top_k: int
    copied_bytes: int
    growth: float = 1.0

    def share(self, *points: Point) -> Fraction:
        """Return the share of the experts that a step reads, at (B, S, T) or with several such parts.

        It is the number of its tokens' choices, at most all experts: an expert is read again for each token that
        chooses it.
        """
        choices = self.top_k * sum(B * S for B, S, _ in points)
        return Fraction(min(choices, self.num_experts), self.num_experts)


@dataclass(frozen=True)
class ActiveRows:
    """Rows of `up` and `down` that a step reads only for active neurons.

    layers: by layer, the bytes of all rows, the number of their blocks, and which of these a step reads. matrices:
    names of the matrices with these rows.
    """

    layers: tuple[tuple[int, int, ActiveBlocks], ...]
    matrices: tuple[str, ...]

    @property
    def size_bytes(self) -> int:
        """Bytes of all rows."""
        return sum(size for size, _, _ in self.layers)

    @property
    def bends_at(self) -> int:
        """Number of new tokens from which every layer reads all rows."""
        return 1 + max(active.most_tokens(blocks) for _, blocks, active in self.layers)

    def share(self, *points: Point) -> Fraction:
        """Return the share of the rows that a step reads, at (B, S, T) or with several such parts."""
        tokens = sum(B * S for B, S, _ in points)
        read = Fraction(0)
        for size, blocks, active in self.layers:
            is_few = tokens <= active.most_tokens(blocks)
            read += size * Fraction(min(tokens * active.kept, blocks), blocks) if is_few else size
        return read / self.size_bytes

    def rows_of(self, group: GroupCounts) -> int:
        """Return the bytes of rows in a group of layers: the feed-forward group, or a single layer's by its name."""
        if group.name == FEED_FORWARD:
            return min(self.size_bytes, group.weight_bytes)
        is_of_rows = group.name.endswith(tuple(f"/mlp/{name}/matmul" for name in self.matrices))
        return group.weight_bytes if is_of_rows else 0


@dataclass(frozen=True)
class GroupCounts:
    """Layers of one kind, each unfused. products: tensor core operations, by type.

    has_experts: whether all of its work is done per expert.
    """

    name: str
    layers: int
    flops: Multilinear
    products: Mapping[str, Multilinear]
    bytes: Multilinear
    weight_bytes: int
    has_experts: bool = False

    def of_chosen(self, share: Fraction, growth: float) -> GroupCounts:
        """Return the work for a share of the experts, whose weights are also copied. growth: see `Mixture`."""
        products = {name: poly.scaled(share) for name, poly in self.products.items()}
        weight_bytes = round(self.weight_bytes * share)
        copied = Multilinear((2 * round(weight_bytes * growth), *(0,) * 7))
        flops, moved = self.flops.scaled(share), self.bytes.scaled(share) + copied
        return replace(self, flops=flops, products=products, bytes=moved, weight_bytes=weight_bytes)

    def of_active(self, share: Fraction, rows: int) -> GroupCounts:
        """Return the work for a share of the rows, which are also copied. rows: bytes of all rows."""
        left = 1 - Fraction(rows, self.weight_bytes) * (1 - share)
        products = {name: poly.scaled(left) for name, poly in self.products.items()}
        unread, copied = round(rows * (1 - share)), 2 * round(rows * share)
        moved = self.bytes + Multilinear((copied - unread, *(0,) * 7))
        return replace(
            self,
            flops=self.flops.scaled(left),
            products=products,
            bytes=moved,
            weight_bytes=self.weight_bytes - unread,
        )


@dataclass(frozen=True)
class NetworkCounts:
    """Counts of a whole network.

    fused_bytes: the fewest bytes it can move; cache_bytes: the part read from caches. alive: bytes of live results at
    each step that differs from the others. mixture: None if every step reads all weights. copied_bytes: of paged
    caches, which a step copies before attention reads them; largest_copy: those of one layer.
    """

    groups: tuple[GroupCounts, ...]
    fused_bytes: Multilinear
    cache_bytes: Multilinear
    alive: tuple[Multilinear, ...]
    mixture: Mixture | None = None
    copied_bytes: Multilinear = NOTHING
    largest_copy: Multilinear = NOTHING
    active: ActiveRows | None = None

    @property
    def bends_at(self) -> int:
        """Number of new tokens from which a step reads all weights; below it, bytes are not linear in that number."""
        if self.active is not None:
            return self.active.bends_at
        return 1 if self.mixture is None else -(-self.mixture.num_experts // self.mixture.top_k)

    def of_step(self, *points: Point) -> NetworkCounts:
        """Return the costs of a step that reads only chosen experts or active neurons.

        points: (B, S, T), or several such parts.
        """
        if self.active is not None:
            return self._of_active(self.active, self.active.share(*points))
        if self.mixture is None:
            return self
        share = self.mixture.share(*points)
        experts = sum(group.weight_bytes for group in self.groups if group.has_experts)
        first, *rest = self.fused_bytes.coefficients
        fused = Multilinear((first - experts + round(experts * share), *rest))
        groups = tuple(
            group.of_chosen(share, self.mixture.growth) if group.has_experts else group for group in self.groups
        )
        return replace(self, groups=groups, fused_bytes=fused, mixture=None)

    def _of_active(self, active: ActiveRows, share: Fraction) -> NetworkCounts:
        first, *rest = self.fused_bytes.coefficients
        fused = Multilinear((first - round(active.size_bytes * (1 - share)), *rest))
        groups = tuple(
            group.of_active(share, rows) if (rows := active.rows_of(group)) else group for group in self.groups
        )
        return replace(self, groups=groups, fused_bytes=fused, active=None)

    def with_gathered_pages(self, pages: CopiedPages) -> NetworkCounts:
        """Return the counts of a network whose layers copy pages: cached data is read, written and read again."""
        return self._with_copies(PAGE_COPIES, pages)

    def with_copied_windows(self, windows: CopiedPages) -> NetworkCounts:
        """Return the counts of a network whose layers copy the cached tokens in use before reading them."""
        return self._with_copies(WINDOW_COPIES, windows)

    def _with_copies(self, name: str, pages: CopiedPages) -> NetworkCounts:
        copied = self.cache_bytes.scaled(pages.share)
        group = GroupCounts(name, pages.layers, NOTHING, {}, copied + copied, 0)
        groups = (*self.groups, *([group] if pages.layers else []))
        largest = self.cache_bytes.scaled(pages.largest)
        return replace(self, groups=groups, copied_bytes=copied, largest_copy=largest)

    @property
    def cache_traffic(self) -> Multilinear:
        """Cache traffic of a step: what it reads, plus copies of that, which are written and read."""
        return total([self.cache_bytes, self.copied_bytes, self.copied_bytes])

    @cached_property
    def moved_bytes(self) -> Multilinear:
        """The fewest bytes that a step can move, including copies of pages, which are written and read."""
        return total([self.fused_bytes, self.copied_bytes, self.copied_bytes])

    @property
    def flops(self) -> Multilinear:
        """All operations."""
        return total([group.flops for group in self.groups])

    @cached_property
    def products(self) -> dict[str, Multilinear]:
        """Tensor core operations, by type."""
        types = dict.fromkeys(name for group in self.groups for name in group.products)
        return {
            name: total([group.products[name] for group in self.groups if name in group.products]) for name in types
        }

    @property
    def weight_bytes(self) -> int:
        """Bytes of weights that layers compute with, excluding tables that are only looked up."""
        return sum(group.weight_bytes for group in self.groups)

    def activation_bytes(self, *points: Point) -> int:
        """Return the peak bytes of live results in a step of these parts, without fusion.

        They include copies: of chosen experts, and of a layer's pages, both as they are and followed by new tokens.
        """
        experts = 0 if self.mixture is None else round(self.mixture.copied_bytes * self.mixture.share(*points))
        copies = max(experts, 2 * self.largest_copy.at(*points))
        return copies + max((poly.at(*points) for poly in self.alive), default=0)


def counts_of(
    costs: Mapping[_Point, NetworkCost],
    fit: Callable[[Mapping[_Point, int]], Multilinear],
    mixture: Mixture | None = None,
    active: ActiveRows | None = None,
) -> NetworkCounts:
    """Return functions fitted to the costs of one network at several points."""
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
        active=active,
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
