"""An EAGLE-3 head's folder: config.json and safetensors, as SafeAILab or vLLM's `speculators` saved them."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from trtkit.errors import Problem, ProblemsError, SourceError, reader
from trtkit.models.speculator import SpeculatorSpec, fusion_weights, head_weights, layer_fields, speculator_spec
from trtkit.sources.checkpoint import Checkpoint
from trtkit.sources.safetensors_folder import read_folder, read_json
from trtkit.sources.speculator_folder import speculator_config

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from trtkit.arrays import Array
    from trtkit.models.spec import DecoderSpec
    from trtkit.models.speculator import Fields
    from trtkit.models.weights import Weight
    from trtkit.sources.checkpoint import StoredArray

_PREFIX = re.compile(r"^(model\.)?(midlayer\.|layers\.0\.)?")
_IDLE = ("rotary_emb.inv_freq", "verifier_norm.weight", "verifier_lm_head.weight", "d2t", "t2d")
_TABLE = "embedding.weight"


@dataclass(frozen=True, eq=False)
class OpenedSpeculator:
    """A head with its files open. ids: [draft_vocab_size], the model's token of each of the head's.

    layer_fields: the config of its layer, as of a model of one layer. fusion, own: weights by path, of the model's
    network and of the head's. own lacks `embedding.weight` if the head reads the model's table.
    """

    spec: SpeculatorSpec
    layer_fields: Fields
    ids: np.ndarray
    fusion: Mapping[str, Array]
    own: Mapping[str, Array]

    @property
    def has_own_table(self) -> bool:
        """Whether the head has an embedding of its own."""
        return _TABLE in self.own


@reader
def open_speculator(folder: Path, target: DecoderSpec) -> OpenedSpeculator:
    """Open a head for the model `target`.

    Raises SourceError for a folder that is missing, holds pickles or another kind of head, ProblemsError for weights
    that are missing, have another shape or are unknown, and for a head that was made for another model.
    """
    path = speculator_config(folder)
    fields, stored = read_json(path), _renamed(read_folder(folder)[0])
    spec = speculator_spec(fields, str(path), target)
    arrays = Checkpoint({name: array for name, array in stored.items() if not name.endswith(_IDLE)})
    if "fc.bias" in arrays:
        spec = replace(spec, fusion=replace(spec.fusion, has_bias=True))
    fusion, own = ({weight.path: weight for weight in each} for each in (fusion_weights(spec), head_weights(spec)))
    if own[_TABLE].name not in arrays and spec.decoder.hidden_size == spec.target_hidden_size:
        own.pop(_TABLE)
    problems = list(_misfits([*fusion.values(), *own.values()], arrays, str(folder)))
    if problems:
        raise ProblemsError("the weights do not fit an EAGLE-3 head of this config", problems)
    read = ({path: arrays[weight.name] for path, weight in weights.items()} for weights in (fusion, own))
    return OpenedSpeculator(spec, layer_fields(fields, str(path)), _ids(spec, stored, folder), *read)


def _renamed(stored: Mapping[str, StoredArray]) -> dict[str, StoredArray]:
    """Return arrays by their names without what formats put before them."""
    return {_PREFIX.sub("", name): array for name, array in stored.items()}


def _misfits(weights: Sequence[Weight], arrays: Checkpoint, where: str) -> Iterator[Problem]:
    """Yield weights that are missing, of another shape, or not the head's."""
    for weight in weights:
        name, expected = weight.name, list(weight.shape)
        if name not in arrays:
            yield Problem(f"`{name}` is missing, of shape {expected}", where)
        elif list(arrays.shape_of(name)) != expected:
            yield Problem(f"`{name}` has shape {list(arrays.shape_of(name))}; expected {expected}", where)
    known = {weight.name for weight in weights}
    yield from (Problem(f"`{name}` is not a weight of this head", where) for name in arrays if name not in known)


def _ids(spec: SpeculatorSpec, stored: Mapping[str, StoredArray], folder: Path) -> np.ndarray:
    """Return the model's token of each of the head's. Raises SourceError where the tables contradict each other."""
    count, vocab, where = spec.draft_vocab_size, spec.decoder.vocab_size, str(folder)
    if "d2t" not in stored:
        if count != vocab:
            raise SourceError(f"`d2t` is missing, which names the model's tokens of the head's {count}", where)
        return np.arange(vocab)
    offsets = np.asarray(stored["d2t"].read())
    if offsets.shape != (count,) or offsets.dtype.kind not in "iu":
        what = f"`d2t` has shape {list(offsets.shape)} and type {offsets.dtype}; expected {count} integers"
        raise SourceError(what, where)
    ids = np.arange(count) + offsets.astype(np.int64)
    if ids.min() < 0 or ids.max() >= vocab or len(np.unique(ids)) < count:
        raise SourceError(f"`d2t` does not name {count} different tokens below {vocab}", where)
    if "t2d" in stored:
        is_known = np.asarray(stored["t2d"].read()).astype(np.bool_)
        if is_known.shape != (vocab,) or not np.array_equal(is_known.nonzero()[0], np.sort(ids)):
            raise SourceError("`t2d` marks other tokens than `d2t` names", where)
    return ids
