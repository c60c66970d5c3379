"""Requests and the pages of their tokens: enough before every call, from whom nobody reads, or from who came last."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from trtkit.errors import RequestError
from trtkit.llm.sequences import keyed

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from trtkit.llm.cache import PageTables
    from trtkit.llm.engine.state import State
    from trtkit.llm.scheduler.request import Request
    from trtkit.llm.sequences import Ints

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
    register_running(state)
    ids = known_ids(request)
    own = keyed(ids, request.adapter_id.key)
    matched = [] if len(state.imports) or not state.finds_by_content else pages.match(own, request.soft)
    return _make_free(state, pages_to_begin(pages, len(ids), matched, is_alone=not state.running.requests))


def pages_to_begin(pages: PageTables, tokens: int, matched: Sequence[int], *, is_alone: bool) -> int:
    """Return how many pages must be free for a request of `tokens` known tokens, which `matched` pages begin with.

    is_alone: whether nobody else runs; if not, a few pages stay free for those that run.
    """
    needed = -(-(tokens + 1) // pages.page_tokens) - len(matched)
    unused = int((pages.references[matched] == 0).sum())  # free pages that would not be free any longer
    return needed + unused + (0 if is_alone else int(_SPARE_SHARE * pages.pages))


def known_ids(request: Request) -> Ints:
    """Return a request's prompt, and what it had generated before it gave way."""
    prompt = np.asarray(request.prompt_ids, np.int64)
    return np.append(prompt, request.generated).astype(np.int64) if request.generated else prompt


def adopt_prefix(state: State, slot: int, ids: Ints, request: Request) -> None:
    """Let an empty slot begin with the pages that hold the beginning of `ids`."""
    assert state.pages is not None
    state.pages.adopt(slot, state.pages.match(keyed(ids, request.adapter_id.key), request.soft))


def register_running(state: State) -> None:
    """Let other requests find what those that run have cached."""
    if state.pages is not None and state.finds_by_content:
        full = state.slots.cached // state.pages.page_tokens > state.pages.registered[: state.slots.count]
        for slot in (full & state.slots.is_running).nonzero()[0].tolist():
            state.register(slot)


def with_pages(
    state: State, slots: Ints, counts: Ints, give_way: Callable[[list[int]], None], land: Callable[[], None]
) -> Ints:
    """Return those of `slots` [R] that can write `counts` [R] more tokens; others give way until there are pages.

    give_way: takes the slots of a request. land: takes the tokens in flight, before recurrent states are saved.
    The first in turn keeps its pages: it can come to its end.
    """
    pages, cached, is_landed = state.pages, state.slots.cached, not state.execution.cache.has_states
    while pages is not None:
        kept = state.slots.is_running[slots]
        chosen, more = slots[kept], counts[kept]
        stops = np.minimum(cached[chosen] + more, state.execution.max_length)
        if not chosen.size or _make_free(state, pages.needed(chosen, cached[chosen], stops)):
            return chosen
        if not is_landed:
            land()
            is_landed = True
            continue
        in_turn = state.running.in_turn(np.array(list(state.running.requests), np.int64))
        group = state.running.groups.get(in_turn[-1])
        last = in_turn[-1:] if group is None else group.all_slots
        if len(last) == len(in_turn):
            return chosen  # nobody else has pages; the call says how many it lacks
        give_way(last)
    return slots


def _make_free(state: State, needed: int) -> bool:
    """Take pages from sequences that have ended, the oldest first, until enough are free; return whether they are."""
    pages = state.pages
    assert pages is not None
    while pages.free < needed:
        slot = state.slots.oldest_ended(pages.counts[: state.slots.count])
        if slot is None:
            break
        state.put_away(slot)
        state.empty(slot)
    return pages.free >= needed
