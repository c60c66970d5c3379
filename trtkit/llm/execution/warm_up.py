"""Runs an engine's steps before its first request, so that no request waits for compilation or capture."""

from __future__ import annotations

import logging
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING

import numpy as np

from trtkit.llm.cache import PageCopies
from trtkit.llm.execution.call import Call, CallPages
from trtkit.llm.execution.packed import PackedCall, no_rows

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from trtkit.llm.execution.execution import Draw, RankExecution

_LOG = logging.getLogger("trtkit.engine")


@dataclass(frozen=True)
class WarmStep:
    """A decode step: slots, new tokens per row, and cached tokens that attention reads."""

    slots: slice
    tokens: int
    window: int
    draw: Draw | None


def warm_up(
    decoder: RankExecution, draws: Sequence[Draw | None], guesses: int, windows: Sequence[int], most: int
) -> None:
    """Run the longest prompt, and each kind of decode step once, at most `most` of them.

    No slot is in use: what the steps write into caches is overwritten before it is read. draws: follow steps of one
    token per row. guesses: per row in steps that check guesses; 0 if there are none. windows: numbers of cached tokens
    that steps read.
    """
    counted = replace(decoder.calls)
    steps = list(warm_steps(decoder, draws, guesses, windows))[:most]
    _run(decoder, slice(0, 1), (decoder.max_prefill_length, decoder.max_prefill_length), decoder.max_length)
    for number, step in enumerate(steps):
        _LOG.info("warming up: decode step %d of %d", number + 1, len(steps))
        _run(decoder, step.slots, (step.tokens, 0), step.window, step.draw)
    decoder.cache.positions[:] = 0
    for field in fields(counted):
        setattr(decoder.calls, field.name, getattr(counted, field.name))
    if decoder.calls.neurons is not None:
        decoder.calls.neurons.reset()


def warm_steps(
    decoder: RankExecution, draws: Sequence[Draw | None], guesses: int, windows: Sequence[int]
) -> Iterator[WarmStep]:
    """Yield the decode steps that `slots_to_run` allows, those from slot 0 first."""
    kinds = [(1, draw) for draw in draws or (None,)]
    if guesses:
        kinds.append((decoder.tokens_to_run(1 + guesses, 1 + guesses), None))
    firsts = range(decoder.slots if decoder.cache.needs_neighbors else 1)
    spans = [slice(first, stop) for first in firsts for stop in range(first + 1, decoder.slots + 1)]
    runs = {(run.start, run.stop): run for run in map(decoder.slots_to_run, spans)}
    for run in runs.values():
        for window in windows:
            yield from (WarmStep(run, tokens, window, draw) for tokens, draw in kinds)


def _run(decoder: RankExecution, slots: slice, tokens: tuple[int, int], window: int, draw: Draw | None = None) -> None:
    """Run rows of idle slots. tokens: per row, and how many of them are used."""
    rows, (width, used) = slots.stop - slots.start, tokens
    start = 0 if used else max(0, min(window, decoder.max_length - width) - width)
    starts, counts = np.full(rows, start, np.int64), np.full(rows, used, np.int64)
    call = Call(slots.start, np.zeros((rows, width), np.int64), starts, counts)
    page = decoder.cache.page_tokens
    if page is not None:  # page 0, which is never read
        table = np.zeros((rows, -(-window // page)), np.int32)
        call = replace(call, pages=CallPages(table, page, PageCopies([], [])))
    if decoder.packed is not None and width > 1 and not used:
        decoder.packed.forward_packed(PackedCall(call, no_rows(), np.zeros(1, np.int64)))
    else:
        decoder.forward(call, draw)
