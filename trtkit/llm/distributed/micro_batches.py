"""A call in parts that pipeline stages run one after another, so that several stages work at once."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import torch

from trtkit.models.parallel import prefill_parts

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trtkit.llm.execution.call import Call


def parts_of(call: Call, stages: int) -> int:
    """Return in how many parts a call is run best. A decode step is one: each part reads all weights again."""
    return 1 if call.ids.shape[1] == 1 else prefill_parts(stages, int(call.ids.size))


def split(call: Call, parts: int) -> list[Call]:
    """Return a call in at most `parts` parts: by rows if there are as many, else by tokens, in order."""
    rows, size = call.ids.shape
    if parts <= 1:
        return [call]
    if rows >= parts:
        return [_rows(call, chunk[0], chunk[-1] + 1) for chunk in np.array_split(np.arange(rows), parts)]
    length = math.ceil(size / parts)
    return [_tokens(call, first, min(first + length, size)) for first in range(0, size, length)]


def join(call: Call, parts: Sequence[Call], logits: Sequence[torch.Tensor], *, has_all_logits: bool) -> torch.Tensor:
    """Return a call's logits [R, V], or [R, S, V] of all tokens, from those of its parts."""
    if len(parts) == 1:
        return logits[0]
    if len(parts[0].starts) < len(call.starts):
        return torch.cat(list(logits))
    if has_all_logits:
        return torch.cat(list(logits), 1)
    last = np.maximum(call.counts - 1, 0) // parts[0].ids.shape[1]
    return torch.stack([logits[part][row] for row, part in enumerate(last.tolist())])


def gpipe_bubble(stages: int, parts: int) -> float:
    """Return the share of a stage's steps that it is idle, by GPipe's formula (p - 1) / (m + p - 1)."""
    return (stages - 1) / (parts + stages - 1)


def _rows(call: Call, first: int, stop: int) -> Call:
    rows = slice(first, stop)
    part = replace(call.with_rows(rows), first_slot=call.first_slot + int(first))
    return part if call.pages is None else replace(part, pages=call.pages.part(rows, is_first=first == 0))


def _tokens(call: Call, first: int, stop: int) -> Call:
    """Return tokens `first` to `stop` of each row. A row that has ended writes its padding after its tokens."""
    done = np.minimum(call.counts, first)
    counts = np.minimum(call.counts, stop) - done
    part = replace(call, ids=call.ids[:, first:stop], starts=call.starts + done, counts=counts)
    return part if call.pages is None else replace(part, pages=call.pages.part(slice(None), is_first=first == 0))
