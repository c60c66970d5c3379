"""The shapes that a network is measured at: profiles' min, opt and max, or the requested batch sizes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from trtkit.errors import BenchError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trtkit.bundle.records import IoRecord
    from trtkit.network.input_spec import ResolvedProfile

Shapes = dict[str, tuple[int, ...]]


@dataclass(frozen=True)
class ShapeCase:
    """All inputs' shapes of one run. batch: the first input's first dimension: what throughput counts."""

    shapes: Shapes

    @property
    def batch(self) -> int:
        """Samples of a call."""
        first = next(iter(self.shapes.values()), ())
        return first[0] if first else 1

    @property
    def name(self) -> str:
        """Return `images 8x3x224x224`."""
        return ", ".join(f"{name} {'x'.join(map(str, shape)) or 'scalar'}" for name, shape in self.shapes.items())


def profile_cases(inputs: Sequence[IoRecord], profiles: Sequence[ResolvedProfile]) -> list[ShapeCase]:
    """Return the min, opt and max shapes of every profile, each once; the only shapes of a static network."""
    static = {tensor.name: tensor.shape for tensor in inputs}
    distinct: list[Shapes] = [] if profiles else [static]
    for profile in profiles:
        for kind in ("min", "opt", "max"):
            shapes = {**static, **{name: tuple(getattr(shape, kind)) for name, shape in profile.items()}}
            if shapes not in distinct:
                distinct.append(shapes)
    return [ShapeCase(shapes) for shapes in distinct]


def batch_cases(
    batches: Sequence[int], inputs: Sequence[IoRecord], profiles: Sequence[ResolvedProfile]
) -> list[ShapeCase]:
    """Return the opt shapes with other batch sizes: every input's first dimension that is dynamic.

    Raises BenchError for a batch size that no profile takes.
    """
    return [_batch_case(batch, inputs, profiles) for batch in dict.fromkeys(batches)]


def _batch_case(batch: int, inputs: Sequence[IoRecord], profiles: Sequence[ResolvedProfile]) -> ShapeCase:
    static = {tensor.name: tensor.shape for tensor in inputs}
    dynamic = [tensor.name for tensor in inputs if tensor.shape and tensor.shape[0] == -1]
    for profile in profiles:
        if dynamic and all(profile[name].min[0] <= batch <= profile[name].max[0] for name in dynamic):
            opt = {name: tuple(shape.opt) for name, shape in profile.items()}
            batched = {name: (batch, *opt[name][1:]) for name in dynamic}
            return ShapeCase({**static, **opt, **batched})
    first = inputs[0].shape[0] if inputs and inputs[0].shape else 1
    if not dynamic and batch == first:
        return ShapeCase(static)
    raise BenchError(f"no profile takes a batch of {batch}", "--batch", _allowed(dynamic, first, profiles))


def _allowed(dynamic: Sequence[str], first: int, profiles: Sequence[ResolvedProfile]) -> str:
    if not dynamic:
        return f"the network is static: its batch is {first}"
    ranges = [f"{profile[dynamic[0]].min[0]} to {profile[dynamic[0]].max[0]}" for profile in profiles]
    return f"give {' or '.join(ranges)}, or widen the profile and build again"
