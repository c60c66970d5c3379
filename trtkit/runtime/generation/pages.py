"""Requests and the pages of their tokens: enough before every call, from whom nobody reads, or from who came last."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from trtkit.errors import RequestError
from trtkit.runtime.sequences import UNKNOWN

if TYPE_CHECKING:
    from collections.abc import Callable

    from trtkit.runtime.generation.request import Request
    from trtkit.runtime.generation.state import State
    from trtkit.runtime.paging import PageTables
    from trtkit.runtime.scheduling import Waiting
    from trtkit.runtime.sequences import Ints

_SPARE_SHARE = 0.01  # of all pages, which new requests leave to those that run


def longest(pages: PageTables, request: Request) -> int:
    """Return how many tokens a request can come to if it has all pages: beams share those of the prompt only."""
    size, count = pages.page_tokens, pages.pages - 1
    if request.slots == 1:
        return count * size
    prompt = len(request.prompt_ids)
    for_each = (count - -(-prompt // size)) // request.slots
    return prompt + max(0, for_each - 1) * size  # a beam's first page is a copy of the prompt's last


def check_pages(pages: PageTables, request: Request) -> None:
    """Raise RequestError for a prompt that all pages together cannot hold."""
    if len(request.prompt_ids) >= longest(pages, request):
        held = f"{pages.pages - 1} pages of {pages.page_tokens} tokens"
        what = f"the prompt has {len(request.prompt_ids)} tokens; the caches have {held}"
        beams = f" for {request.slots} beams" if request.slots > 1 else ""
        raise RequestError(what + beams, request.id, "shorten it, or give the caches more memory")


def can_admit(state: State, request: Request) -> bool:
    """Whether there are pages for a request's known tokens and the next one; a few stay for those that run."""
    pages = state.pages
    if pages is None:
        return True
    for slot in state.running.requests:
        register(state, slot)
    ids, is_saved = known_ids(request), bool(len(state.imports) + len(state.snapshots))
    matched = [] if is_saved or not state.finds_by_content else pages.match(ids, request.soft)
    needed = -(-(len(ids) + 1) // pages.page_tokens) - len(matched)
    unused = int((pages.references[matched] == 0).sum())  # free pages that would not be free any longer
    spare = int(_SPARE_SHARE * pages.pages) if state.running.requests else 0
    return bool(_make_free(state, needed + unused + spare))


def known_ids(request: Request) -> Ints:
    """Return a request's prompt, and what it had generated before it gave way."""
    prompt = np.asarray(request.prompt_ids, np.int64)
    return np.append(prompt, request.generated).astype(np.int64) if request.generated else prompt


def adopt_prefix(state: State, slot: int, ids: Ints, request: Request) -> None:
    """Let an empty slot begin with the pages that hold the beginning of `ids`."""
    assert state.pages is not None
    state.pages.adopt(slot, state.pages.match(ids, request.soft))


def register(state: State, slot: int) -> None:
    """Let other requests find what a slot has cached, as far as the host knows its tokens."""
    if state.pages is None or not state.finds_by_content:
        return
    sequences = state.slots.sequences
    ids = sequences.tokens[slot, : state.slots.cached[slot]]
    unknown = (ids == UNKNOWN).nonzero()[0]
    state.pages.register(slot, ids[: unknown[0]] if unknown.size else ids, sequences.soft.get(slot))


def with_pages(state: State, waiting: Waiting[Request], slots: Ints, counts: Ints, preempt: Callable[[int], Request]) -> Ints:
    """Return those of `slots` [R] that can write `counts` [R] more tokens; others give way until there are pages.

    preempt: takes a slot from its request. The first in turn keeps its pages: it can come to its end.
    """
    pages, cached, chosen = state.pages, state.slots.cached, slots
    while pages is not None and chosen.size:
        stops = np.minimum(cached[slots] + counts, state.execution.max_length)[state.slots.is_running[slots]]
        if _make_free(state, pages.needed(chosen, cached[chosen], stops)):
            break
        in_turn = state.running.in_turn(np.array(list(state.running.requests), np.int64))
        group = state.running.groups.get(in_turn[-1])
        last = in_turn[-1:] if group is None else group.all_slots
        if len(last) == len(in_turn):
            break  # nobody else has pages; the call says how many it lacks
        for slot in last:
            request = preempt(slot)
        if group is not None:
            request.generated = []  # beams begin again
        waiting.put_back(request)
        chosen = slots[state.slots.is_running[slots]]
    return chosen


def _make_free(state: State, needed: int) -> bool:
    """Take pages from sequences that have ended, the oldest first, until enough are free; return whether they are."""
    pages = state.pages
    assert pages is not None
    while pages.free < needed:
        slot = state.slots.oldest_ended(pages.counts[: state.slots.count])
        if slot is None:
            break
        state.empty(slot)
    return pages.free >= needed
