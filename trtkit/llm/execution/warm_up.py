"""Steps that an engine runs before its first request, so that no request waits for compilation or capture."""

from __future__ import annotations

import logging
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING

import numpy as np

from trtkit.llm.cache import PageCopies
from trtkit.llm.execution.call import Call, CallPages
from trtkit.llm.execution.packed import PackedCall, no_rows
from trtkit.network.input_spec import kv_window

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from trtkit.llm.execution.engine import EngineDecoder
    from trtkit.llm.execution.execution import Draw

_LOG = logging.getLogger("trtkit.engine")


@dataclass(frozen=True)
class WarmStep:
    """A decode step: which slots run, how many new tokens each row has, and how many cached ones attention reads."""

    slots: slice
    tokens: int
    window: int
    draw: Draw | None


def warm_up(decoder: EngineDecoder, draws: Sequence[Draw | None], guesses: int, most: int) -> None:
    """Run each decode step once, at most `most`, and the longest prompt; keep the kernels that were compiled.

    No slot is in use: what the steps write into caches is overwritten before anybody reads it.
    draws: what follows steps of one token a row. guesses: tokens that a row has besides in steps that check guesses; 0
    if there are none.
    """
    counted = replace(decoder.calls)
    decoder.reserve_prompts()  # graphs hold the addresses of buffers
    steps = list(warm_steps(decoder, draws, guesses))[:most]
    _run(decoder, slice(0, 1), (decoder.max_prefill_length, decoder.max_prefill_length), decoder.max_length)
    for number, step in enumerate(steps):
        _LOG.info("warming up: decode step %d of %d", number + 1, len(steps))
        _run(decoder, step.slots, (step.tokens, 0), step.window, step.draw)
    decoder.synchronize()
    decoder.engine.save_kernels()
    decoder.cache.positions[:] = 0
    for field in fields(counted):
        setattr(decoder.calls, field.name, getattr(counted, field.name))


def warm_steps(decoder: EngineDecoder, draws: Sequence[Draw | None], guesses: int) -> Iterator[WarmStep]:
    """Yield what `slots_to_run` lets decode steps be, those from slot 0 first."""
    kinds = [(1, draw) for draw in draws or (None,)]
    if guesses:
        kinds.append((decoder.tokens_to_run(1 + guesses, 1 + guesses), None))
    windows = windows_of(decoder)
    firsts = range(decoder.slots if decoder.cache.needs_neighbors else 1)
    spans = [slice(first, stop) for first in firsts for stop in range(first + 1, decoder.slots + 1)]
    runs = {(run.start, run.stop): run for run in map(decoder.slots_to_run, spans)}
    for run in runs.values():
        for window in windows:
            yield from (WarmStep(run, tokens, window, draw) for tokens, draw in kinds)


def windows_of(decoder: EngineDecoder) -> list[int]:
    """Return how many cached tokens attention may read, in steps that decode."""
    length = decoder.max_length
    if not decoder.has_windows:
        return [length]
    return sorted({kv_window(1 << bit, length) for bit in range(length.bit_length() + 1)})


def _run(decoder: EngineDecoder, slots: slice, tokens: tuple[int, int], window: int, draw: Draw | None = None) -> None:
    """Run rows of idle slots. tokens: of each row, and how many of them are used."""
    rows, (width, used) = slots.stop - slots.start, tokens
    start = 0 if used else max(0, min(window, decoder.max_length - width) - width)
    starts, counts = np.full(rows, start, np.int64), np.full(rows, used, np.int64)
    call = Call(slots.start, np.zeros((rows, width), np.int64), starts, counts)
    page = decoder.cache.page_tokens
    if page is not None:  # page 0, which nobody reads
        table = np.zeros((rows, -(-window // page)), np.int32)
        call = replace(call, pages=CallPages(table, page, PageCopies([], [])))
    if decoder.packed is not None and width > 1 and not used:
        decoder.packed.forward_packed(PackedCall(call, no_rows(), np.zeros(1, np.int64)))
    else:
        decoder.forward(call, draw)
