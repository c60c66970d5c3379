"""Ceilings in a report: the rates that figures are compared with, the share that was reached, and layers."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Ceiling:
    """The reference for figures. said: description of it, or the reason why there is none."""

    said: str


@dataclass(frozen=True)
class _Rates(Ceiling):
    """The best rates of a processor. operations_per_s: of matrix products, by type."""

    operations_per_s: dict[str, float]


@dataclass(frozen=True)
class PublishedRates(_Rates):
    """A GPU's rates from its data sheet. sources: pages that state the figures."""

    bytes_per_s: float
    sources: tuple[str, ...]

    @property
    def bandwidth_bytes_per_s(self) -> float:
        return self.bytes_per_s


@dataclass(frozen=True)
class MeasuredRates(_Rates):
    """A processor's measured rates, each the best of several.

    copy and read: bytes per second of a copy, which reads and writes, and of a matrix-vector product, which reads.
    """

    copy_bytes_per_s: float
    read_bytes_per_s: float

    @property
    def bandwidth_bytes_per_s(self) -> float:
        """The faster of copying and reading."""
        return max(self.copy_bytes_per_s, self.read_bytes_per_s)

    def rate(self, dtype: str) -> float | None:
        """Return the rate of products of `dtype`: its own, or fp32's if that is higher or no other is known.

        Every type can be widened to fp32, as quantized ones are.
        """
        return max(self.operations_per_s["fp32"], self.operations_per_s.get(dtype, 0.0))


@dataclass(frozen=True)
class Reached:
    """A figure's ceiling, the share of it that was reached, and what bounds it. Times are in ms."""

    ceiling: float
    reached: float
    bound: str


@dataclass(frozen=True)
class LayerTime:
    """A timed layer. layers: how many of the network's layers it contains. floor_ms: the minimum time."""

    layer: str
    layers: int
    ms: float
    floor_ms: float
    bound: str
    flops: int
    bytes: int


@dataclass(frozen=True)
class LayerGap(LayerTime):
    """A layer that loses time. gap_ms: to its floor. reached: share of the floor."""

    gap_ms: float
    reached: float


@dataclass(frozen=True)
class StepShape:
    """The size of a language model's step."""

    batch: int
    new_tokens: int
    cached_tokens: int


@dataclass(frozen=True)
class PhaseLayers:
    """The layers of one call. at: size of a language model's step. gaps: the layers that lose the most time."""

    name: str
    flops: int
    bytes: int
    layers: tuple[LayerTime, ...]
    gaps: tuple[LayerGap, ...]
    at: StepShape | None = None
