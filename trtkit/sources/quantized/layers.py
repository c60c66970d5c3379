"""From a quantized checkpoint's tensors to matrices: which tensors belong to one layer, and what is left."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from trtkit.errors import Problem, ProblemsError, SourceError, TrtkitError
from trtkit.sources.checkpoint import StoredArray

if TYPE_CHECKING:
    from trtkit.quantized import QuantizedMatrix

Stored = Mapping[str, StoredArray]
Parts = dict[str, StoredArray]
"""A layer's tensors by what follows its name: `weight`, `weight_scale`, `qzeros`."""
Read = Callable[[str, Parts], "QuantizedMatrix"]


def layers(stored: Stored, marker: str, names: tuple[str, ...]) -> dict[str, Parts]:
    """Return the tensors called `names` of each module that has one called `marker`, by module."""
    modules = [name.removesuffix(f".{marker}") for name in stored if name.endswith(f".{marker}")]
    return {
        module: {part: stored[key] for part in names if (key := f"{module}.{part}") in stored} for module in modules
    }


def replaced(stored: Stored, found: Mapping[str, Parts], read: Read) -> Parts:
    """Return all tensors, those of each found module as one `weight` that is read when it is asked for.

    read: makes a matrix of a module and its tensors; it is called once for each now, to know that it can be.
    Raises ProblemsError with every module that cannot.
    """
    used = {f"{module}.{part}" for module, parts in found.items() for part in parts}
    rest = {name: array for name, array in stored.items() if name not in used}
    problems, weights = [], {}
    for module, parts in found.items():
        try:
            shape = read(module, parts).shape
        except TrtkitError as error:
            problems.append(Problem(error.what, module))
            continue
        again: Any = partial(read, module, parts)
        weights[f"{module}.weight"] = StoredArray(shape, again, is_quantized=True)
    if problems:
        raise ProblemsError("quantized layers that cannot be read", problems)
    return rest | weights


_CODES = ("int8", "uint8", "int32", "float8_e4m3fn", "float8_e5m2")


def check_rest(stored: Stored) -> None:
    """Raise ProblemsError naming weights that are codes, although nothing says by what they are multiplied."""
    names = [name for name, array in stored.items() if name.endswith(".weight") and not array.is_quantized]
    kinds = {name: str(stored[name].read().dtype) for name in names}
    problems = [Problem(f"`{name}` holds {kind}", name) for name, kind in kinds.items() if kind in _CODES]
    if problems:
        raise ProblemsError("quantized weights without scales", problems, "copy the checkpoint's files again")


def part(parts: Parts, name: str) -> Any:
    """Return one tensor of a layer. Raises SourceError where there is none."""
    if name not in parts:
        raise SourceError(f"`{name}` is missing", fix="copy the checkpoint's files again")
    return parts[name].read()


def number(parts: Parts, name: str, default: float | None = None) -> float:
    """Return a tensor of one element as a number. Raises SourceError where it is none, not finite or not positive."""
    if name not in parts and default is not None:
        return default
    array = np.asarray(part(parts, name), np.float32)
    if array.size != 1 or not np.isfinite(array).all() or float(array.reshape(-1)[0]) <= 0:
        raise SourceError(f"`{name}` is not one positive number", fix="quantize the model again")
    return float(array.reshape(-1)[0])
