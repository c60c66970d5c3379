"""The comparison of a bigram head's network with torch's embedding."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch
from trtkit.drafts.bigram.spec import TABLE

from trtkit.llm.execution import Call

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from transformers import PreTrainedModel

    from trtkit.arrays import Array
    from trtkit.builder.speculators import OpenedSpeculator
    from trtkit.llm.execution import ReferenceDecoder


def logit_pairs(
    model: ReferenceDecoder,
    reference: PreTrainedModel,
    opened: OpenedSpeculator,
    arrays: Mapping[str, Array],
    ids: Sequence[int],
) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Return the logits after each token of a prompt, and torch's."""
    table, zeros = torch.from_numpy(np.array(arrays[TABLE], np.float32)), np.zeros(1, np.int64)
    theirs = torch.nn.functional.embedding(torch.tensor(list(ids)), table)
    ours = [model.speculator.forward(Call(0, np.array([[token]]), zeros, zeros)).clone() for token in ids]
    return [(each, expected[None]) for each, expected in zip(ours, theirs, strict=True)]
