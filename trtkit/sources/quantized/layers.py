"""From a quantized checkpoint's tensors to matrices: which tensors belong to one layer, and what is left."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from trtkit.errors import Problem, ProblemsError, SourceError, TrtkitError
from trtkit.sources.checkpoint import StoredArray
from trtkit.sources.safetensors_file import release

if TYPE_CHECKING:
    from trtkit.quantized_matrix import QuantizedMatrix

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


def replaced(stored: Stored, modules: Mapping[str, Parts], read: Read) -> Parts:
    """Return all tensors, those of each of `modules` as one `weight` that is read when it is requested.

    read: makes a matrix of a module and its tensors. Of modules whose tensors are alike it is called for the first now,
    to know that it can be; reading all would take minutes. Raises ProblemsError with every module that cannot.
    """
    used = {f"{module}.{part}" for module, parts in modules.items() for part in parts}
    rest = {name: array for name, array in stored.items() if name not in used}
    problems, weights, shapes = [], {}, {}
    for module, parts in modules.items():
        try:
            kind = _kind(module, parts)
            if kind not in shapes:
                shapes[kind] = read(module, parts).shape
        except TrtkitError as error:
            problems.append(Problem(error.what, module))
            continue
        again: Any = partial(_read, read, module, parts)
        weights[f"{module}.weight"] = StoredArray(shapes[kind], again, is_quantized=True)
    if problems:
        raise ProblemsError("quantized layers that cannot be read", problems)
    return rest | weights


def _kind(module: str, parts: Parts) -> tuple[object, ...]:
    """Return what decides whether a module can be read: the last part of its name, its tensors' forms and ranges."""
    return (module.rpartition(".")[2], *((name, *_form(array.read())) for name, array in sorted(parts.items())))


def _form(array: Any) -> tuple[object, ...]:
    """Return shape, type and range of a tensor; of codes no range, of short integers their bytes."""
    form = (array.shape, array.dtype.name)
    if array.dtype.itemsize == 1 or (array.ndim > 1 and array.dtype.kind in "iu"):
        return form
    if array.dtype.kind in "iu":
        return (*form, array.tobytes())
    wide = np.asarray(array, np.float32)
    return (*form, bool(np.isfinite(wide).all()), bool((wide > 0).all()))


def _read(read: Read, module: str, parts: Parts) -> QuantizedMatrix:
    """Read a module's matrix; what was copied out of a file is let go. Raises SourceError naming the module."""
    try:
        matrix = read(module, parts)
    except TrtkitError as error:
        raise SourceError(error.what, module, error.fix) from None
    kept = [array for array in (matrix.codes, matrix.scales, matrix.offsets, matrix.input_factors) if array is not None]
    for stored in parts.values():
        array = stored.read()
        if not any(np.may_share_memory(array, other) for other in kept):
            release(array)
    return matrix


_CODES = ("int8", "uint8", "int32", "float8_e4m3fn", "float8_e5m2")


def check_rest(stored: Stored) -> None:
    """Raise ProblemsError naming weights that are codes, although nothing says by what they are multiplied."""
    names = [name for name, array in stored.items() if name.endswith(".weight") and not array.is_quantized]
    kinds = {name: str(stored[name].first.read().dtype) for name in names}
    problems = [Problem(f"`{name}` holds {kind}", name) for name, kind in kinds.items() if kind in _CODES]
    if problems:
        raise ProblemsError("quantized weights without scales", problems, "copy the checkpoint's files again")


def part(parts: Parts, name: str) -> Any:
    """Return one tensor of a layer. Raises SourceError if there is none."""
    if name not in parts:
        raise SourceError(f"`{name}` is missing", fix="copy the checkpoint's files again")
    return parts[name].read()


def number(parts: Parts, name: str, default: float | None = None) -> float:
    """Return a tensor of one element as a number. Raises SourceError if it is not one, not finite or not positive."""
    if name not in parts and default is not None:
        return default
    array = np.asarray(part(parts, name), np.float32)
    if array.size != 1 or not np.isfinite(array).all() or float(array.reshape(-1)[0]) <= 0:
        raise SourceError(f"`{name}` is not one positive number", fix="quantize the model again")
    return float(array.reshape(-1)[0])
