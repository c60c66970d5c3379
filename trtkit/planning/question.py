"""What a plan of a language model answers: a model with its counts, and the work it is to do."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from trtkit.models.spec import DecoderSpec
    from trtkit.planning.counts import Counts
    from trtkit.planning.decoder_model import DecoderModel, Workload


@dataclass(frozen=True)
class Question:
    """A model with its counts, and the work it is to do."""

    model: DecoderModel
    counts: Counts
    work: Workload
    spec: DecoderSpec
