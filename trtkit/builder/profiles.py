"""Optimization profiles: the config's ranges, checked against the model and completed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from trtkit.config.schema import DimRange, ShapeRange
from trtkit.errors import ConfigError, Problem, did_you_mean
from trtkit.network.input_spec import ProfileShapes

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from trtkit.config.schema import Profile
    from trtkit.network.input_spec import MinOptMax, ResolvedProfile
    from trtkit.network.onnx.io import OnnxTensorSpec

# Dimension 0 of an input, usually the batch, may be omitted from a config.
DEFAULT_BATCH = DimRange(min=1, opt=1, max=8)
_REMOVE = "all sizes of the model are fixed: remove `profiles`, or export the model with dynamic sizes"


@dataclass(frozen=True)
class _Usual:
    """Default ranges of symbols that profiles may omit. assumed: the defaults that were used."""

    ranges: Mapping[str, DimRange]
    assumed: dict[str, DimRange]

    def of(self, symbol: str) -> DimRange | None:
        """Return a symbol's default range and record its use; None if it has none."""
        return self.assumed.setdefault(symbol, self.ranges[symbol]) if symbol in self.ranges else None


def resolve_profiles(
    inputs: Sequence[OnnxTensorSpec],
    profiles: Sequence[Profile],
    ranges: Mapping[str, MinOptMax] | None = None,
) -> tuple[list[ResolvedProfile], str]:
    """Return the shapes of every dynamic input in every profile, and a description of the assumed defaults.

    ranges: default (min, opt, max) sizes of symbols that profiles may omit; sizes above the max are refused.
    Raises ConfigError with every fault: unknown names, static dimensions, wrong ranks, dimensions without a range.
    """
    problems: list[Problem] = []
    usual = {spec.shape[0]: DEFAULT_BATCH for spec in inputs if spec.shape and isinstance(spec.shape[0], str)}
    usual |= {name: DimRange(min=low, opt=opt, max=most) for name, (low, opt, most) in (ranges or {}).items()}
    assumed: dict[str, DimRange] = {}
    resolved = []
    for index, profile in enumerate(profiles or [{}]):
        where = f"profiles.{index}"
        problems += _faults(inputs, profile, where)
        resolved.append(_complete(inputs, profile, where, problems, _Usual(usual, assumed)))
        problems += _beyond(inputs, resolved[-1], ranges or {}, where)
    if problems:
        raise ConfigError("the profiles do not fit the model", list(dict.fromkeys(problems)), _describe(inputs))
    if not any(spec.is_dynamic for spec in inputs):
        return [], "static shapes, no profile needed"
    notes = [f"{name} not given: [{r.min}, {r.opt}, {r.max}] assumed" for name, r in assumed.items()]
    return resolved, "; ".join([f"{len(resolved)} profile{'s'[: len(resolved) != 1]}", *notes])


def check_keys(inputs: Sequence[OnnxTensorSpec], profiles: Sequence[Profile]) -> None:
    """Refuse profile keys that the model does not have, before it is exported or folded. Raises ConfigError."""
    faults = [
        _key_fault(key, value, inputs, f"profiles.{index}.{key}")
        for index, profile in enumerate(profiles)
        for key, value in profile.items()
    ]
    problems = [fault for fault in faults if fault is not None]
    if problems:
        raise ConfigError("the profiles do not fit the model", problems, _describe(inputs))


def with_first_names(profiles: Sequence[Profile], aliases: Mapping[str, str]) -> list[Profile]:
    """Return profiles in which each dimension has its name in the network. aliases: other names to that name.

    Raises ConfigError if a profile gives one dimension two ranges under two of its names.
    """
    renamed: list[Profile] = []
    problems: list[Problem] = []
    for index, profile in enumerate(profiles):
        ranges: Profile = {}
        for key, value in profile.items():
            name = aliases.get(key, key)
            if ranges.setdefault(name, value) != value:
                what = f"dimension `{name}` has different ranges under its different names"
                problems.append(Problem(what, f"profiles.{index}.{key}", "give both one range, or remove one"))
        renamed.append(ranges)
    if problems:
        raise ConfigError("the profiles do not fit the model", problems)
    return renamed


def opt_dims(profiles: Sequence[Profile]) -> dict[str, int]:
    """Return the `opt` sizes of the symbolic dimensions in the first profile."""
    first = profiles[0] if profiles else {}
    return {name: value.opt for name, value in first.items() if isinstance(value, DimRange)}


def opt_shapes(inputs: Sequence[OnnxTensorSpec], profiles: Sequence[ResolvedProfile]) -> dict[str, tuple[int, ...]]:
    """Return the `opt` shape of every input in the first profile; a static input's own shape."""
    first = profiles[0] if profiles else {}
    return {
        spec.name: first[spec.name].opt if spec.name in first else tuple(int(dim) for dim in spec.shape)
        for spec in inputs
    }


def small_shapes(inputs: Sequence[OnnxTensorSpec], profiles: Sequence[ResolvedProfile]) -> dict[str, tuple[int, ...]]:
    """Return each input's smallest shape in the first profile, with 2 instead of 1 in dimensions that may vary."""
    first = profiles[0] if profiles else {}
    shapes = opt_shapes(inputs, profiles)
    for name, shape in first.items():
        shapes[name] = tuple(max(low, min(2, high)) for low, high in zip(shape.min, shape.max, strict=True))
    return shapes


def _complete(
    inputs: Sequence[OnnxTensorSpec],
    profile: Profile,
    where: str,
    problems: list[Problem],
    usual: _Usual,
) -> ResolvedProfile:
    """Return the shapes of every dynamic input; append a problem for each dimension without a range."""
    axes = _axes(inputs)
    ranges = {symbol: next(iter(_ranges_of(symbol, axes, profile).values()), None) for symbol in _symbols(inputs)}
    result = {}
    for spec in inputs:
        shapes = profile.get(spec.name)
        if isinstance(shapes, ShapeRange):
            result[spec.name] = ProfileShapes(shapes.min, shapes.opt, shapes.max)
        elif spec.is_dynamic:
            result[spec.name] = _by_dims(spec, ranges, where, problems, usual)
    return result


def _beyond(
    inputs: Sequence[OnnxTensorSpec], profile: ResolvedProfile, ranges: Mapping[str, MinOptMax], where: str
) -> Iterator[Problem]:
    """Yield a problem for each symbol whose range exceeds the model's limit."""
    for spec in inputs:
        for axis, dim in enumerate(spec.shape):
            if isinstance(dim, str) and dim in ranges and profile[spec.name].max[axis] > ranges[dim][2]:
                what = f"`{dim}` goes up to {profile[spec.name].max[axis]}; the model takes at most {ranges[dim][2]}"
                yield Problem(what, where, f"lower it to {ranges[dim][2]}")


def _axes(inputs: Sequence[OnnxTensorSpec]) -> dict[str, int | str]:
    """Map `<input>.<axis>` to its size or symbol."""
    return {f"{spec.name}.{axis}": dim for spec in inputs for axis, dim in enumerate(spec.shape)}


def _symbols(inputs: Sequence[OnnxTensorSpec]) -> list[str]:
    """Return the symbolic dimensions of all inputs."""
    return sorted({dim for spec in inputs for dim in spec.shape if isinstance(dim, str)})


def _faults(inputs: Sequence[OnnxTensorSpec], profile: Profile, where: str) -> list[Problem]:
    """Return the problems of one profile's keys."""
    problems = [_key_fault(key, value, inputs, f"{where}.{key}") for key, value in profile.items()]
    problems += [_conflict(symbol, _axes(inputs), profile, where) for symbol in _symbols(inputs)]
    return [problem for problem in problems if problem is not None]


def _conflict(symbol: str, axes: Mapping[str, int | str], profile: Profile, where: str) -> Problem | None:
    """Return a problem if one symbol has different ranges; None if they agree."""
    ranges_by_key = _ranges_of(symbol, axes, profile)
    if len({(sizes.min, sizes.opt, sizes.max) for sizes in ranges_by_key.values()}) < 2:
        return None
    ranges = ", ".join(f"`{key}` [{r.min}, {r.opt}, {r.max}]" for key, r in ranges_by_key.items())
    return Problem(f"dimension `{symbol}` has different ranges: {ranges}", where, "give it one range")


def _key_fault(key: str, value: DimRange | ShapeRange, inputs: Sequence[OnnxTensorSpec], where: str) -> Problem | None:
    """Return the problem of one profile key; None if it is valid."""
    by_name = {spec.name: spec for spec in inputs}
    if isinstance(value, ShapeRange):
        if key in by_name:
            return _shape_fault(by_name[key], value, where)
        return Problem(f"unknown input `{key}`", where, _near(key, list(by_name)))
    if key in by_name:
        return Problem(f"`{key}` is an input; its range has three shapes, not three sizes", where)
    axes, symbols = _axes(inputs), _symbols(inputs)
    if isinstance(axes.get(key), int):
        return Problem(f"`{key}` is static: its size is {axes[key]}", where, "remove it, or export the model dynamic")
    if key not in symbols and key not in axes:
        fix = _near(key, [*symbols, *by_name]) if symbols else _REMOVE
        return Problem(f"unknown input or dimension `{key}`", where, fix)
    return None


def _shape_fault(spec: OnnxTensorSpec, value: ShapeRange, where: str) -> Problem | None:
    """Return a problem if the shapes contradict the input's rank or static sizes."""
    if len(value.min) != len(spec.shape):
        return Problem(f"`{spec.name}` has rank {len(spec.shape)}, the shapes have rank {len(value.min)}", where)
    for axis, dim in enumerate(spec.shape):
        if isinstance(dim, int) and not value.min[axis] == value.max[axis] == dim:
            return Problem(
                f"dimension {axis} of `{spec.name}` is static: its size is {dim}, "
                f"the profile says {value.min[axis]}..{value.max[axis]}",
                where,
                f"write {dim} in all three shapes, or export the model dynamic",
            )
    return None


def _ranges_of(symbol: str, axes: Mapping[str, int | str], profile: Profile) -> dict[str, DimRange]:
    """Return the ranges that the profile gives a symbol: by its name, by one of its axes, or by an input's shapes."""
    of_symbol = [key for key, dim in axes.items() if dim == symbol]
    ranges = ((key, profile.get(key)) for key in [symbol, *of_symbol])
    by_key = {key: value for key, value in ranges if isinstance(value, DimRange)}
    for key in of_symbol:
        name, _, axis = key.rpartition(".")
        shapes = profile.get(name)
        if isinstance(shapes, ShapeRange) and int(axis) < len(shapes.min):
            low, opt, high = (shape[int(axis)] for shape in (shapes.min, shapes.opt, shapes.max))
            by_key[f"{name}[{axis}]"] = DimRange(min=low, opt=opt, max=high)
    return by_key


def _by_dims(
    spec: OnnxTensorSpec,
    ranges: Mapping[str, DimRange | None],
    where: str,
    problems: list[Problem],
    usual: _Usual,
) -> ProfileShapes:
    """Build the shapes of one input from the ranges of its dimensions."""
    dims = []
    for axis, dim in enumerate(spec.shape):
        if isinstance(dim, int):
            dims.append(DimRange(min=dim, opt=dim, max=dim))
            continue
        dim_range = ranges[dim] or usual.of(dim)
        if dim_range is None:
            fix = f"add `{dim}: [min, opt, max]` to the profile, or give sizes as in `--shapes {_example(spec)}`"
            problems.append(Problem(f"dimension `{dim}` (axis {axis} of `{spec.name}`) has no range", where, fix))
            dim_range = DEFAULT_BATCH
        dims.append(dim_range)
    return ProfileShapes(
        min=tuple(dim.min for dim in dims), opt=tuple(dim.opt for dim in dims), max=tuple(dim.max for dim in dims)
    )


def _example(spec: OnnxTensorSpec) -> str:
    """Return an input's shape in typical sizes, in the syntax of `--shapes`."""
    edge = 640 if len(spec.shape) == 4 else 128
    sizes = [dim if isinstance(dim, int) else edge if axis else 1 for axis, dim in enumerate(spec.shape)]
    return f"{spec.name}:{'x'.join(map(str, sizes))}"


def _near(key: str, known: list[str]) -> str:
    return f"{did_you_mean(key, known)}known: {', '.join(known)}"


def _describe(inputs: Sequence[OnnxTensorSpec]) -> str:
    """Return the model's inputs as one line."""
    shapes = (f"{spec.name} [{', '.join(str(dim) for dim in spec.shape)}]" for spec in inputs)
    return f"the model's inputs are {'; '.join(shapes)}"
