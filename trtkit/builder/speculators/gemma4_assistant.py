"""The folder of Gemma 4's assistant: config.json and safetensors, as transformers saves them."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from trtkit.builder.speculators.opened import OpenedSpeculator, misfits
from trtkit.errors import ProblemsError, SourceError
from trtkit.models.speculators.gemma4_assistant import LM_HEAD, ORDER, TABLE, assistant_spec
from trtkit.sources.checkpoint import Checkpoint

if TYPE_CHECKING:
    from trtkit.builder.speculators.opened import HeadFolder
    from trtkit.models.spec import DecoderSpec

_EMBEDDING = "model.embed_tokens.weight"


def open_assistant(folder: HeadFolder, target: DecoderSpec) -> OpenedSpeculator:
    """Open an assistant of the model `target`.

    Raises SourceError, ProblemsError for fields and weights that are missing, unknown or another model's.
    """
    spec = assistant_spec(folder.fields, folder.where, target)
    stored = {name: array for name, array in folder.stored.items() if not name.startswith(spec.unused)}
    head_weights = {weight.path: weight for weight in spec.head_weights()}
    borrowed = {head_weights.pop(TABLE).path: TABLE}
    if LM_HEAD in stored:
        stored.pop(_EMBEDDING, None)  # an assistant looks up tokens in the model's embedding
    elif folder.fields.get("tie_word_embeddings", True):
        head_weights[LM_HEAD] = replace(head_weights[LM_HEAD], name=_EMBEDDING)
    arrays = Checkpoint(stored)
    problems = list(misfits(head_weights.values(), arrays, folder.path))
    if problems:
        raise ProblemsError("the weights do not fit an assistant of this config", problems)
    read = {path: arrays[weight.name] for path, weight in head_weights.items()}
    if ORDER in read and not np.array_equal(np.sort(read[ORDER]), np.arange(spec.decoder.vocab_size)):
        what = f"`{head_weights[ORDER].name}` does not name each of {spec.decoder.vocab_size} tokens once"
        raise SourceError(what, folder.path)
    return OpenedSpeculator(spec, np.arange(spec.decoder.vocab_size), {}, read, borrowed, folder.fields)
