"""An EAGLE-3 head's folder: config.json and safetensors, as SafeAILab or vLLM's `speculators` saved them."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from trtkit.builder.speculators import OpenedSpeculator
from trtkit.drafts.eagle3.spec import eagle3_spec, layer_fields
from trtkit.drafts.fit import misfits
from trtkit.errors import ProblemsError, SourceError
from trtkit.sources.checkpoint import Checkpoint

if TYPE_CHECKING:
    from collections.abc import Mapping

    from trtkit.builder.speculators import SpeculatorFolder
    from trtkit.drafts.eagle3.spec import Eagle3Spec
    from trtkit.models.spec import DecoderSpec
    from trtkit.sources.checkpoint import StoredArray

_PREFIX = re.compile(r"^(model\.)?(midlayer\.|layers\.0\.)?")
_IDLE = ("rotary_emb.inv_freq", "verifier_norm.weight", "verifier_lm_head.weight", "d2t", "t2d")
_TABLE = "embedding.weight"


def open_folder(folder: SpeculatorFolder, target: DecoderSpec) -> OpenedSpeculator:
    """Open an EAGLE-3 head for the model `target`.

    Raises SourceError, ProblemsError for missing or unknown fields and weights, and for those of another model's head.
    """
    fields, where, stored = folder.fields, folder.where, _renamed(folder.stored)
    spec = eagle3_spec(fields, where, target)
    arrays = Checkpoint({name: array for name, array in stored.items() if not name.endswith(_IDLE)})
    if "fc.bias" in arrays:
        spec = replace(spec, fusion=replace(spec.fusion, has_bias=True))
    fusion, network_weights = (
        {weight.path: weight for weight in weights} for weights in (spec.fusion_weights(), spec.network_weights())
    )
    borrowed = {}
    if network_weights[_TABLE].name not in arrays and spec.decoder.hidden_size == spec.target_hidden_size:
        borrowed[network_weights.pop(_TABLE).path] = _TABLE
    problems = list(misfits([*fusion.values(), *network_weights.values()], arrays, folder.path))
    if problems:
        raise ProblemsError("the weights do not fit an EAGLE-3 head of this config", problems)
    of_model, of_head = (
        {path: arrays[weight.name] for path, weight in weights.items()} for weights in (fusion, network_weights)
    )
    ids = _ids(spec, stored, folder.path)
    return OpenedSpeculator(spec, ids, of_model, of_head, borrowed, layer_fields(fields, where))


def _renamed(stored: Mapping[str, StoredArray]) -> dict[str, StoredArray]:
    """Return arrays by name without the formats' prefixes."""
    return {_PREFIX.sub("", name): array for name, array in stored.items()}


def _ids(spec: Eagle3Spec, stored: Mapping[str, StoredArray], where: str) -> np.ndarray:
    """Return the model's token id of each token of the head. Raises SourceError if the tables contradict each other."""
    count, vocab = spec.draft_vocab_size, spec.decoder.vocab_size
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
