"""Shapes to run: min, opt and max of every profile, and random ones in between."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from trtkit.config.schema import DimRange

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from trtkit.config.schema import Profile
    from trtkit.network.input_spec import ResolvedProfile
    from trtkit.network.onnx.io import OnnxTensorSpec

Shapes = dict[str, tuple[int, ...]]


def corner_shapes(
    inputs: Sequence[OnnxTensorSpec],
    profiles: Sequence[ResolvedProfile],
    configured: Sequence[Profile],
    random_count: int,
) -> Iterator[tuple[str, Shapes]]:
    """Yield a name and all input shapes for each profile corner and for `random_count` random shapes per profile.

    configured: the profiles as written in the config, whose `multiple_of` random sizes respect.
    """
    static = {spec.name: tuple(dim for dim in spec.shape if isinstance(dim, int)) for spec in inputs}
    generator = np.random.default_rng(0)
    seen: list[Shapes] = []
    for index, profile in enumerate(profiles):
        named = [
            (kind, {name: getattr(shape, kind) for name, shape in profile.items()}) for kind in ("min", "opt", "max")
        ]
        units = _multiples(inputs, configured[index] if index < len(configured) else {})
        named += [(f"random {n + 1}", _random(inputs, profile, units, generator)) for n in range(random_count)]
        for kind, dynamic in named:
            shapes = {**static, **dynamic}
            if shapes not in seen:
                seen.append(shapes)
                yield f"profile {index} {kind}", shapes


def _random(
    inputs: Sequence[OnnxTensorSpec],
    profile: ResolvedProfile,
    units: Mapping[str, int],
    generator: np.random.Generator,
) -> Shapes:
    """Draw a size for each symbol within all of its ranges; equal symbols get equal sizes."""
    low: dict[str, int] = {}
    high: dict[str, int] = {}
    for spec in inputs:
        for axis, dim in enumerate(spec.shape):
            if isinstance(dim, str):
                low[dim] = max(low.get(dim, 0), profile[spec.name].min[axis])
                high[dim] = min(high.get(dim, 2**31), profile[spec.name].max[axis])
    drawn = {}
    for dim, smallest in low.items():
        unit = units.get(dim, 1)
        drawn[dim] = int(generator.integers(-(-smallest // unit), high[dim] // unit + 1)) * unit
    return {
        spec.name: tuple(drawn[dim] if isinstance(dim, str) else dim for dim in spec.shape)
        for spec in inputs
        if spec.name in profile
    }


def _multiples(inputs: Sequence[OnnxTensorSpec], configured: Profile) -> dict[str, int]:
    """Return the `multiple_of` of each symbol whose range sets one."""
    units = {}
    for spec in inputs:
        for axis, dim in enumerate(spec.shape):
            for key in (dim, f"{spec.name}.{axis}"):
                dim_range = configured.get(str(key))
                if isinstance(dim_range, DimRange):
                    units[str(dim)] = dim_range.multiple_of
    return units
