"""Splits a call into parts that pipeline stages run one after the other, so that several stages work at once."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import torch

from trtkit.llm.execution.packed import no_rows
from trtkit.models.parallel import prefill_parts

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trtkit.llm.execution.call import Call
    from trtkit.llm.execution.packed import PackedCall


def parts_of(reads_prompts: bool, tokens: int, stages: int) -> int:
    """Return the best number of parts for a call; one for decode steps, since each part reads all weights again."""
    return prefill_parts(stages, tokens) if reads_prompts else 1


def split(call: Call, parts: int) -> list[Call]:
    """Return a call in at most `parts` parts, in order: split by rows if there are as many, else by tokens."""
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


def split_packed(packed: PackedCall, parts: int, max_length: int) -> list[PackedCall]:
    """Return a packed call in at most `parts` parts of equal token counts, the first with all decoding rows.

    Prompts are cut anywhere except within images whose tokens attend to each other, and except where a prompt's padding
    next to longer rows would exceed its slot of `max_length` tokens. The parts' logits concatenate to the call's.
    """
    decoding, prompts = packed.decoding_tokens, packed.prompts
    if parts <= 1 or not len(packed.places):
        return [packed]
    assert (np.diff(packed.logit_index) >= 0).all()
    size, total = math.ceil(packed.tokens / parts), len(packed.places)
    cuts = {_whole(prompts, max(0, edge - decoding), max_length) for edge in range(size, packed.tokens, size)}
    ends = [*sorted(cuts - {total} if decoding else cuts - {0, total}), total]
    rest = replace(packed, decode=no_rows())
    spans = zip([0, *ends], ends, strict=False)
    return [_part(rest if number else packed, *span, decoding) for number, span in enumerate(spans)]


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


def _whole(prompts: Call, cut: int, max_length: int) -> int:
    """Return where to cut the tokens of all rows: at `cut`, or next to tokens that must not be split there."""
    ends = np.cumsum(prompts.counts)
    row = int(np.searchsorted(ends, cut, side="right"))
    start, first = int(prompts.starts[row]), int(ends[row] - prompts.counts[row])
    if cut == first:
        return cut
    if len(ends) > 1 and start + prompts.counts[row] + prompts.ids.shape[1] > max_length:
        return int(ends[row])
    soft = prompts.soft.get(int(prompts.slots[row]))
    return cut if soft is None else first + soft.whole(start, start + cut - first) - start


def _part(packed: PackedCall, start: int, stop: int, decoding: int) -> PackedCall:
    """Return a packed call of the same decoding rows and of tokens `start` to `stop` of the prompts.

    decoding: tokens before the prompts' in the call that `logit_index` refers to.
    """
    prompts = packed.prompts
    before = np.cumsum(prompts.counts) - prompts.counts
    done, ends = (np.clip(edge - before, 0, prompts.counts) for edge in (start, stop))
    first = 0 if packed.rows else decoding + start
    is_here = (first <= packed.logit_index) & (packed.logit_index < decoding + stop)
    packed = replace(packed, logit_index=packed.logit_index[is_here] - first)
    live = np.flatnonzero(ends > done)
    if not live.size:
        return replace(packed, prompts=no_rows())
    rows = slice(int(live[0]), int(live[-1]) + 1)
    part, done, counts = prompts.with_rows(rows), done[rows], (ends - done)[rows]
    columns = np.arange(counts.max())
    ids = np.take_along_axis(part.ids, np.minimum(done[:, None] + columns, part.ids.shape[1] - 1), 1)
    pages, slots = part.pages, prompts.slots[rows]
    pages = None if pages is None else pages.part(rows, is_first=start == 0)
    part = replace(part, first_slot=int(slots[0]), scattered=slots, pages=pages, ids=ids)
    return replace(packed, prompts=replace(part, starts=part.starts + done, counts=counts))
