"""The folder of a Gemma 4 assistant: config.json and safetensors, as transformers saves them."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from trtkit.builder.speculators import OpenedSpeculator
from trtkit.drafts.fit import misfits
from trtkit.drafts.gemma4_assistant.spec import LM_HEAD, ORDER, TABLE, assistant_spec
from trtkit.errors import ProblemsError, SourceError
from trtkit.sources.checkpoint import Checkpoint

if TYPE_CHECKING:
    from trtkit.builder.speculators import SpeculatorFolder
    from trtkit.models.spec import DecoderSpec

_EMBEDDING = "model.embed_tokens.weight"


def open_folder(folder: SpeculatorFolder, target: DecoderSpec) -> OpenedSpeculator:
    """Open an assistant of the model `target`.

    Raises SourceError, ProblemsError for missing or unknown fields and weights, and for those of another model.
    """
    spec = assistant_spec(folder.fields, folder.where, target)
    stored = {name: array for name, array in folder.stored.items() if not name.startswith(spec.unused)}
    network_weights = {weight.path: weight for weight in spec.network_weights()}
    borrowed = {network_weights.pop(TABLE).path: TABLE}
    if LM_HEAD in stored:
        stored.pop(_EMBEDDING, None)  # an assistant uses the model's embedding
    elif folder.fields.get("tie_word_embeddings", True):
        network_weights[LM_HEAD] = replace(network_weights[LM_HEAD], name=_EMBEDDING)
    arrays = Checkpoint(stored)
    problems = list(misfits(network_weights.values(), arrays, folder.path))
    if problems:
        raise ProblemsError("the weights do not fit an assistant of this config", problems)
    read = {path: arrays[weight.name] for path, weight in network_weights.items()}
    if ORDER in read and not np.array_equal(np.sort(read[ORDER]), np.arange(spec.decoder.vocab_size)):
        what = f"`{network_weights[ORDER].name}` does not name each of {spec.decoder.vocab_size} tokens once"
        raise SourceError(what, folder.path)
    return OpenedSpeculator(spec, np.arange(spec.decoder.vocab_size), {}, read, borrowed, folder.fields)
