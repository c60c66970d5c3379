"""The folder of Medusa heads: config.json and safetensors, with FasterDecoding's or vLLM's names, alone or in a model.

Sources: https://github.com/FasterDecoding/Medusa; vllm/model_executor/models/medusa.py;
text_generation_server/layers/medusa.py, whose heads may use the model's own matrix for logits.
"""

from __future__ import annotations

import re
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from trtkit.builder.speculators import OpenedSpeculator
from trtkit.drafts.fit import misfits
from trtkit.drafts.medusa.spec import is_models, medusa_spec
from trtkit.errors import ProblemsError, SourceError
from trtkit.sources.checkpoint import Checkpoint, StoredArray

if TYPE_CHECKING:
    from trtkit.arrays import Array
    from trtkit.builder.speculators import SpeculatorFolder
    from trtkit.drafts.medusa.spec import MedusaSpec
    from trtkit.models.spec import DecoderSpec

_SHARED, _TOKENS = "lm_head.weight", "token_map"
_PREFIX, _HEAD = re.compile(r"^medusa_heads?\."), re.compile(r"^(\d+)\.")
_LAYER, _MATRIX = re.compile(r"^blocks\.(\d+)\.layers\.(\d+)\."), re.compile(r"^lm_heads\.(\d+)\.")


def open_folder(folder: SpeculatorFolder, target: DecoderSpec) -> OpenedSpeculator:
    """Open Medusa heads for the model `target`.

    Raises SourceError, ProblemsError for missing or unknown fields and weights, and for those of another model's heads.
    """
    is_vllms = any(_LAYER.match(_PREFIX.sub("", name)) for name in folder.stored)
    spec = medusa_spec(folder.fields, folder.where, target, has_bias=not is_vllms)
    stored = _renamed(folder, spec)
    spec = replace(spec, stored_heads=1 + max(map(_head, stored), default=-1))
    stored = {name: array for name, array in stored.items() if _head(name) < spec.heads}
    ids = _ids(spec, stored.pop(_TOKENS, None), folder.path)
    matrices = {_SHARED, *(f"{head}.{spec.layers}.weight" for head in range(spec.heads))}
    borrowed = {}
    if not matrices & set(stored) and len(ids) == target.vocab_size:
        if target.head.has_bias:
            what = "heads without matrices of their own, for a model whose head has a bias, are not supported"
            raise SourceError(what, folder.path)
        spec = replace(spec, is_shared=True)
        borrowed[_SHARED] = "embedding.weight" if target.head.is_tied else _SHARED
    for name in matrices & set(stored):
        stored[name] = _of_tokens(stored[name], spec, ids)
    arrays = Checkpoint(stored)
    network_weights = {weight.path: weight for weight in spec.network_weights() if weight.path not in borrowed}
    problems = list(misfits(network_weights.values(), arrays, folder.path))
    if problems:
        raise ProblemsError("the weights do not fit Medusa heads of this config", problems)
    read = {path: arrays[weight.name] for path, weight in network_weights.items()}
    return OpenedSpeculator(spec, ids, {}, read, borrowed)


def _renamed(folder: SpeculatorFolder, spec: MedusaSpec) -> dict[str, StoredArray]:
    """Return the heads' arrays by FasterDecoding's names; from a model with heads, only the heads'."""
    is_model = is_models(folder.fields)
    stored = {}
    for name, array in folder.stored.items():
        if is_model and not _PREFIX.match(name):
            continue
        path = _LAYER.sub(r"\1.\2.linear.", _PREFIX.sub("", name))
        path = _MATRIX.sub(rf"\1.{spec.layers}.", path)
        stored[_SHARED if spec.is_shared and path == f"0.{spec.layers}.weight" else path] = array
    return stored


def _head(name: str) -> int:
    """Return the number of a weight's head; -1 for weights of all heads."""
    number = _HEAD.match(name)
    return -1 if number is None else int(number[1])


def _ids(spec: MedusaSpec, tokens: StoredArray | None, where: str) -> np.ndarray:
    """Return the model's token id of each token of the heads. Raises SourceError for an invalid table."""
    count, vocab = spec.draft_vocab_size, spec.vocab_size
    if count == vocab:
        return np.arange(vocab)
    if tokens is None:
        raise SourceError(f"`{_TOKENS}` is missing, which names the model's tokens of the heads' {count}", where)
    ids = np.asarray(tokens.read())
    is_right = ids.shape == (count,) and ids.dtype.kind in "iu" and len(np.unique(ids)) == count
    if not is_right or ids.min() < 0 or ids.max() >= vocab:
        raise SourceError(f"`{_TOKENS}` does not name {count} different tokens below {vocab}", where)
    return ids.astype(np.int64)


def _of_tokens(array: StoredArray, spec: MedusaSpec, ids: np.ndarray) -> StoredArray:
    """Return the rows of the heads' tokens from a matrix with rows for all tokens."""
    if len(ids) == spec.vocab_size or array.shape != (spec.vocab_size, spec.hidden_size):
        return array
    return StoredArray((len(ids), spec.hidden_size), partial(_rows, array, ids))


def _rows(array: StoredArray, ids: np.ndarray) -> Array:
    rows: Array = np.asarray(array.read())[ids]
    return rows
