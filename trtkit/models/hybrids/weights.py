"""Finds the weights of a hybrid's parts in its checkpoint, and checks names and shapes."""

import re
from collections.abc import Iterator, Mapping
from typing import Any

from trtkit.errors import Problem, ProblemsError
from trtkit.models.hybrids.spec import HybridSpec, NetworkPart, OnnxPart
from trtkit.models.weights import Weight, WeightArrays, refuse_wrapped

_SHOWN = 20


def linear_weights(path: str, name: str, shape: tuple[int, ...], *, has_bias: bool = True) -> Iterator[Weight]:
    """Yield a matrix of shape [out, in, ...], and its bias."""
    yield Weight(f"{path}.weight", f"{name}.weight", shape)
    if has_bias:
        yield Weight(f"{path}.bias", f"{name}.bias", shape[:1])


def norm_weights(path: str, name: str, size: int) -> Iterator[Weight]:
    """Yield a layer norm's weight and bias."""
    yield from linear_weights(path, name, (size,))


def checkpoint_name(
    path: str, table: Mapping[str, str], prefix: str, outside: tuple[str, ...] = ("classifier",)
) -> str:
    """Return a path's name in the checkpoint, from the table's entry for it or for its module (without weight or bias).

    table: names by path; `layers.{i}` is any layer. prefix: of all names, except for paths that begin with one of
    `outside`.
    """
    parts = path.split(".")
    number = parts[1] if parts[0] == "layers" else ""
    key = path.replace(f"layers.{number}.", "layers.{i}.", 1) if number else path
    module, _, suffix = key.rpartition(".")
    pattern = table[key] if key in table else f"{table[module]}.{suffix}"
    return ("" if key.startswith(outside) else prefix) + pattern.format(i=number)


def find_part_weights(spec: HybridSpec, source: Mapping[str, Any], where: str = "weights") -> WeightArrays:
    """Return the weights of all network parts by `part.path`, after checking all names and shapes.

    Raises ProblemsError with every weight that is missing, of another shape, or that belongs to no part.
    """
    wanted = {
        f"{part.name}.{weight.path}": weight
        for part in spec.parts
        if isinstance(part, NetworkPart)
        for weight in part.weights
    }
    problems = [*_missing(wanted.values(), source), *_extra(spec, {weight.name for weight in wanted.values()}, source)]
    if problems:
        refuse_wrapped(source, where)
        more = [Problem(f"and {len(problems) - _SHOWN} more")] if len(problems) > _SHOWN else []
        shown = [Problem(problem.what, where) for problem in [*problems[:_SHOWN], *more]]
        raise ProblemsError(f"the weights do not fit a `{spec.model_type}` of this config", shown)
    return WeightArrays({path: weight.name for path, weight in wanted.items()}, source)


def _missing(weights: Any, source: Mapping[str, Any]) -> Iterator[Problem]:
    """Yield weights that are missing or have another shape."""
    shape_of = getattr(source, "shape_of", lambda name: source[name].shape)
    for weight in weights:
        if weight.name not in source:
            yield Problem(f"`{weight.name}` is missing, of shape {list(weight.shape)}")
        elif (shape := tuple(shape_of(weight.name))) != weight.shape:
            yield Problem(f"`{weight.name}` has shape {list(shape)}; expected {list(weight.shape)}")


def _extra(spec: HybridSpec, known: set[str], source: Mapping[str, Any]) -> Iterator[Problem]:
    """Yield weights that belong to no part. Those of ONNX parts are checked when their module loads them."""
    parts = [part for part in spec.parts if isinstance(part, OnnxPart)]
    if any(part.prefix is None for part in parts):
        return
    prefixes = tuple(prefix for part in parts for prefix in part.prefixes)
    for name in source:
        is_unused = any(re.search(pattern, name) for pattern in spec.unused)
        if name not in known and not name.startswith(prefixes) and not is_unused:
            yield Problem(f"`{name}` is not a weight of this model")
