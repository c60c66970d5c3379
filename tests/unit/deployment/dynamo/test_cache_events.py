"""What Dynamo's publishers are told, and when."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("dynamo.common.backend")

from tests.support.generation import LENGTH, PAGE_TOKENS, SLOTS, caches_of, engine, run, settings
from trtkit.deployment.dynamo.cache_events import CacheEvents, load_of
from trtkit.llm.engine import Request

if TYPE_CHECKING:
    from collections.abc import Sequence

PROMPT = [*range(3, 43)]


class Recorder:
    """Both of Dynamo's publishers."""

    def __init__(self) -> None:
        self.events: list[Any] = []
        self.loads: list[Any] = []

    def publish_batch(self, events: Sequence[Any]) -> None:
        self.events += events

    def publish(self, dp_rank: int, snapshot: Any) -> None:
        assert dp_rank == snapshot.dp_rank == 0
        self.loads.append(snapshot)


def request(name: str, prompt: list[int] = PROMPT) -> Request:
    return Request(name, prompt, settings(max_tokens=3, temperature=0, ignore_eos=True))


def test_what_is_held_before_the_publisher_comes_is_told_then() -> None:
    tested, events, publisher = engine(SLOTS), CacheEvents(), Recorder()
    run(tested, [request("a")])
    events.update(tested)
    events.events = publisher
    events.update(tested)
    events.update(tested)
    (stored,) = publisher.events
    assert stored["token_ids"] == PROMPT[:32]
    assert stored["num_block_tokens"] == [16, 16]


@pytest.mark.parametrize("pages", [None, 24])
def test_a_new_engine_holds_nothing_of_the_old_one(pages: int | None) -> None:
    """A model that wakes up has an engine of its own, whose slots and pages may look like those of before."""
    events, publisher = CacheEvents(PAGE_TOKENS), Recorder()
    events.events = publisher
    with caches_of(pages):
        for _ in range(2):
            run(tested := engine(SLOTS), [request("a")])
            events.update(tested)
    assert [event["type"] for event in publisher.events if event["type"] == "removed"] == ["removed"]
    kinds = [(event["type"], sorted(event["block_hashes"])) for event in publisher.events]
    half = len(kinds) // 2
    held = sorted(block for _, blocks in kinds[:half] for block in blocks)
    assert kinds[half] == ("removed", held)
    assert kinds[half + 1 :] == kinds[:half]


def test_load_is_that_of_running_slots() -> None:
    tested, events, publisher = engine(SLOTS), CacheEvents(), Recorder()
    assert load_of(tested).kv_cache_hit_rate is None
    events.load = publisher
    tested.submit(request("a"))
    while tested.has_work:
        tested.step()
        events.update(tested)
        events.update(tested)
    assert [load.kv_used_blocks for load in publisher.loads] == [1, 2, 3, 0]
    assert publisher.loads[1].gpu_cache_usage == 2 / (SLOTS * LENGTH // 16)
    assert {load.kv_total_blocks for load in publisher.loads} == {SLOTS * LENGTH // 16}
    assert publisher.loads[-1].kv_cache_hit_rate == 0
    run(tested, [request("b")])
    assert load_of(tested).kv_cache_hit_rate == 39 / 79  # the last token is read by a decoding step


def test_a_publisher_that_fails_is_told_nothing_more(caplog: pytest.LogCaptureFixture) -> None:
    class Broken(Recorder):
        def publish_batch(self, events: Sequence[Any]) -> None:
            super().publish_batch(events)
            raise RuntimeError("the plane is down")

    tested, events, broken = engine(SLOTS), CacheEvents(), Broken()
    events.events = broken
    with caplog.at_level(logging.ERROR):
        for name in "ab":
            tested.submit(request(name, [ord(name) - 90, *PROMPT]))
            while tested.has_work:
                tested.step()
                events.update(tested)
    assert len(broken.events) == 1
    assert [record.message for record in caplog.records] == [
        "the router is told nothing more of this worker's cache: its publisher failed"
    ]
