"""A bigram head's folder."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from trtkit.drafts.bigram.spec import TABLE, bigram_spec

from trtkit.builder.speculators import OpenedSpeculator
from trtkit.drafts.fit import misfits
from trtkit.errors import ProblemsError
from trtkit.sources.checkpoint import Checkpoint

if TYPE_CHECKING:
    from trtkit.builder.speculators import SpeculatorFolder
    from trtkit.models.spec import DecoderSpec


def open_folder(folder: SpeculatorFolder, target: DecoderSpec) -> OpenedSpeculator:
    """Open a bigram head for the model `target`."""
    spec, arrays = bigram_spec(folder.fields, folder.where, target), Checkpoint(folder.stored)
    if problems := list(misfits(spec.network_weights(), arrays, folder.path)):
        raise ProblemsError("the weights do not fit a bigram head of this config", problems)
    return OpenedSpeculator(spec, np.arange(spec.vocab_size), {}, {TABLE: arrays[TABLE]})
