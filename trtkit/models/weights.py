"""Which weights a model has: their paths here, their names in the checkpoint, their shapes.

Paths are those of network layers with dots: `layers.7.attention.q.weight`. A family's name table maps the module
(`layers.{i}.attention.q`) to the checkpoint's; `.weight` and `.bias` follow by themselves.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from trtkit.errors import Problem, ProblemsError, SourceError
from trtkit.models.registry import decoder_spec
from trtkit.models.weight_shapes import Shape, model_shapes

if TYPE_CHECKING:
    from trtkit.models.spec import DecoderSpec


class StoredWeight(Protocol):
    """A weight that was not read yet. parts: what it is joined from along `axis`; none for one of its own."""

    axis: int

    @property
    def parts(self) -> Sequence[StoredWeight]:
        """What it is joined from."""
        ...

    def part_with(self, axis: int, start: int, stop: int) -> tuple[StoredWeight, int] | None:
        """Return the part that holds all of these rows or columns, and where it begins; None if no one part does."""
        ...

    def read(self) -> Any:
        """Return the array, mapped or decoded."""
        ...


# Buffers that checkpoints carry although they can be computed, and ERNIE's heads of later tokens.
_BUFFERS = re.compile(r"rotary_emb\.inv_freq$|\.(attn|attention)\.(masked_)?bias$|^model\.mtp_")
_WRAPPED = re.compile(r"(?:(?:module|_orig_mod)\.)+")


@dataclass(frozen=True)
class Weight:
    """One weight of a model. name: in the checkpoint. is_table: rows are looked up or added, never multiplied with."""

    path: str
    name: str
    shape: Shape
    is_table: bool = False


def model_weights(spec: DecoderSpec) -> tuple[Weight, ...]:
    """Return every weight that the model has."""
    return tuple(Weight(path, _checkpoint_name(spec, path), shape) for path, shape in model_shapes(spec))


class WeightArrays(Mapping[str, Any]):
    """Weights by path, each read from the source when asked for."""

    def __init__(self, names: Mapping[str, str], source: Mapping[str, Any]) -> None:
        self._names, self._source = names, source

    def __getitem__(self, path: str) -> Any:
        return self._source[self._names[path]]

    def stored(self, path: str) -> StoredWeight | None:
        """Return a weight without reading it, where the source can tell."""
        stored = getattr(self._source, "stored", None)
        return stored(self._names[path]) if stored else None

    def name_of(self, path: str) -> str:
        """Return what the source calls a weight."""
        return self._names[path]

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


def stored_spec(fields: Mapping[str, Any], where: str, source: Mapping[str, Any]) -> DecoderSpec:
    """Return the spec of a config.json, with the head that its checkpoint holds. Raises SourceError, ProblemsError."""
    return with_stored_head(decoder_spec(fields, where), source)


def with_stored_head(spec: DecoderSpec, source: Mapping[str, Any]) -> DecoderSpec:
    """Return `spec`, its head not tied if the checkpoint holds one that differs from the embedding.

    So does transformers, whatever `tie_word_embeddings` says (`PreTrainedModel.tie_weights`).
    """
    if not spec.head.is_tied:
        return spec
    head, table = f"{spec.names['lm_head']}.weight", _names(spec, source)["embedding.weight"]
    is_single = head not in source or table not in source or head == table
    return spec if is_single or _tied_copy(spec, source) else replace(spec, head=replace(spec.head, is_tied=False))


def _tied_copy(spec: DecoderSpec, source: Mapping[str, Any]) -> str:
    """Return the stored head that repeats the embedding; empty if there is none."""
    head, table = f"{spec.names['lm_head']}.weight", _names(spec, source)["embedding.weight"]
    both = spec.head.is_tied and head in source and table in source
    return head if both and _is_same(source, head, table) else ""


def _is_same(source: Mapping[str, Any], name: str, other: str) -> bool:
    """Whether two arrays of a checkpoint hold the same numbers. A quantized one is never the same."""
    if _is_quantized(source, name) or _is_quantized(source, other) or _shape(source, name) != _shape(source, other):
        return False
    rows = zip(_row_blocks(source[name]), _row_blocks(source[other]), strict=True)
    return all(np.array_equal(np.asarray(mine, np.float32), np.asarray(others, np.float32)) for mine, others in rows)


def _row_blocks(array: Any) -> Iterator[Any]:
    """Yield a matrix in blocks of rows, so that comparing two takes no memory of their size."""
    return (array[start : start + 4096] for start in range(0, len(array), 4096))


def find_weights(spec: DecoderSpec, source: Mapping[str, Any], where: str = "weights") -> WeightArrays:
    """Return a model's weights out of a checkpoint, arrays by name, after checking all names and shapes.

    Raises ProblemsError with every weight that is missing, of another shape, or not the model's.
    """
    names = _names(spec, source)
    problems = [*_missing(spec, names, source), *_extra(spec, set(names.values()), source)]
    if problems:
        refuse_wrapped(source, where)
        shown = problems[:20]
        rest = [Problem(f"and {len(problems) - 20} more")] if len(problems) > 20 else []
        summary = f"the weights do not fit a `{spec.model_type}` of this config"
        raise ProblemsError(summary, [Problem(p.what, where) for p in [*shown, *rest]])
    return WeightArrays(names, source)


def refuse_wrapped(source: Iterable[str], where: str) -> None:
    """Raise SourceError if all names begin as those of a module that DDP or `torch.compile` wraps."""
    prefixes = {match[0] if (match := _WRAPPED.match(name)) else "" for name in source}
    if len(prefixes) == 1 and (prefix := prefixes.pop()):
        what = f"the names of all weights begin with `{prefix}`, which DDP and `torch.compile` add"
        raise SourceError(what, where, f"save the module inside the wrapper, or remove `{prefix}` from the names")


def _names(spec: DecoderSpec, source: Mapping[str, Any]) -> dict[str, str]:
    """Return each weight's name in a checkpoint. A tied table may be stored as the head alone."""
    is_bare = bool(spec.prefix) and not any(name.startswith(spec.prefix) for name in source)
    names = {
        weight.path: weight.name.removeprefix(spec.prefix) if is_bare else weight.name for weight in model_weights(spec)
    }
    head = f"{spec.names['lm_head']}.weight"
    if spec.head.is_tied and names["embedding.weight"] not in source and head in source:
        names["embedding.weight"] = head
    return names


def _missing(spec: DecoderSpec, names: Mapping[str, str], source: Mapping[str, Any]) -> Iterator[Problem]:
    """Yield weights that are missing or have another shape."""
    for weight in model_weights(spec):
        name = names[weight.path]
        if name not in source:
            yield Problem(f"`{name}` is missing, of shape {list(weight.shape)}")
        elif (shape := _shape(source, name)) != weight.shape and not (
            spec.is_in_out and shape == weight.shape[::-1] and _is_quantized(source, name)
        ):
            yield Problem(f"`{name}` has shape {list(shape)}; expected {list(weight.shape)}")


def _shape(source: Mapping[str, Any], name: str) -> Shape:
    """Return a weight's shape, without reading it where the source can tell."""
    shape_of = getattr(source, "shape_of", None)
    return tuple(shape_of(name) if shape_of else source[name].shape)


def _is_quantized(source: Mapping[str, Any], name: str) -> bool:
    """Whether a weight is in low precision: then it is [out, in], however the family stores its matrices."""
    is_quantized = getattr(source, "is_quantized", None)
    return bool(is_quantized and is_quantized(name))


def _extra(spec: DecoderSpec, known: set[str], source: Mapping[str, Any]) -> Iterator[Problem]:
    """Yield weights that the model does not have."""
    table = _names(spec, source)["embedding.weight"] if spec.table_copies else ""
    copies = [name for name in spec.table_copies if name in source and table in source]
    tied = {_tied_copy(spec, source), *(name for name in copies if _is_same(source, name, table))}
    for name in source:
        if name not in known and name not in tied and not _BUFFERS.search(name) and not name.startswith(spec.unused):
            yield Problem(f"`{name}` is not a weight of this model")


def _checkpoint_name(spec: DecoderSpec, path: str) -> str:
    """Return the checkpoint's name of a path."""
    numbers = re.findall(r"\.(\d+)\.", path)
    for letter, number in zip("ie", numbers, strict=False):
        path = path.replace(f".{number}.", f".{{{letter}}}.", 1)
    module, _, suffix = path.rpartition(".")
    pattern = spec.names[module] + f".{suffix}" if suffix in ("weight", "bias") else spec.names[path]
    return pattern.format(**dict(zip("ie", numbers, strict=False)))
