"""After every step, the events say what a prompt would find in any tier: by a plain set, and by Dynamo's own tree."""

from __future__ import annotations

import itertools
import json
import random
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from tests.support.generation import SLOTS, caches_of, engine, run, settings
from trtkit.deployment.dynamo.cache_events import CacheEvents, Event, removed, stored
from trtkit.llm.cache import Block, HeldBlocks
from trtkit.llm.cache.held_blocks import START, Change, SlotBlocks, block_after
from trtkit.llm.cache.host.files import CacheFolder
from trtkit.llm.engine import Request
from trtkit.llm.scheduler import SchedulingParams
from trtkit.llm.scheduler.slots import Slots
from trtkit.llm.sequences import keyed

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from trtkit.llm.engine import LLMEngine

BLOCK = 4
KINDS: tuple[dict[str, Any], ...] = ({"temperature": 0}, {"temperature": 1.0, "seed": 3}, {"num_beams": 3})


class Router:
    """What events alone say: the tokens up to each block's end, by its hash."""

    def __init__(self) -> None:
        self.blocks: dict[int, tuple[int, ...]] = {}

    def apply(self, events: list[Event]) -> None:
        names = [block for event in events for block in event["block_hashes"]]
        assert len(names) == len(set(names)), "told twice in a step"
        for event in events:
            if event["type"] == "removed":
                for block in event["block_hashes"]:
                    del self.blocks[block]
                continue
            parent, tokens = event["parent_hash"], event["token_ids"]
            beginning = () if parent is None else self.blocks[parent]
            assert len(tokens) == sum(event["num_block_tokens"]) == BLOCK * len(event["block_hashes"])
            for index, block in enumerate(event["block_hashes"]):
                assert block not in self.blocks
                assert -(2**63) <= block < 2**63
                self.blocks[block] = (*beginning, *tokens[: (index + 1) * BLOCK])

    def held(self, ids: list[int]) -> int:
        """Return how many blocks of a prompt's beginning the worker holds."""
        held = set(self.blocks.values())
        ends = range(BLOCK, len(ids) + 1, BLOCK)
        return sum(1 for _ in itertools.takewhile(lambda end: tuple(ids[:end]) in held, ends))

    def size(self) -> int:
        return len(self.blocks)


class Tree:
    """Dynamo's radix tree, told the events as its publisher tells them."""

    def __init__(self) -> None:
        self._dynamo = pytest.importorskip("dynamo.llm")
        self._tree, self._count = self._dynamo.RadixTree(), 0

    def apply(self, events: list[Event]) -> None:
        for event in events:
            hashes = [block % 2**64 for block in event["block_hashes"]]
            data: dict[str, Any] = {"removed": {"block_hashes": hashes}}
            if event["type"] == "stored":
                parent = None if event["parent_hash"] is None else event["parent_hash"] % 2**64
                tokens = self._dynamo.compute_block_hash_for_seq(event["token_ids"], BLOCK)
                pairs = zip(hashes, tokens, strict=True)
                blocks = [{"block_hash": block, "tokens_hash": own} for block, own in pairs]
                data = {"stored": {"parent_hash": parent, "blocks": blocks}}
            sent = {"event_id": self._count, "data": data, "dp_rank": 0}
            self._tree.apply_event(1, json.dumps(sent).encode())
            self._count += 1

    def held(self, ids: list[int]) -> int:
        """Return how many blocks of a prompt's beginning the worker holds."""
        hashes = self._dynamo.compute_block_hash_for_seq(ids, BLOCK)
        return int(self._tree.find_matches(hashes).scores.get((1, 0), 0))

    def size(self) -> int:
        events = [json.loads(text)["event"]["data"] for text in self._tree.dump_tree_as_events()]
        return sum(len(data["stored"]["blocks"]) for data in events)


def request(r: random.Random, name: str) -> Request:
    """Return a request whose prompt often begins like another's."""
    stem = [5, 9, 13, 17, 21, 25, 29, 33, 37, 41, 45, 49] * 2
    prompt = stem[: r.randint(0, 24)] + [r.randrange(3, 67) for _ in range(r.randint(1, 12))]
    params = {"max_tokens": r.randint(2, 30), **r.choice(KINDS)}
    return Request(name, prompt, settings(**params), SchedulingParams(r.choice((0, 1, 2))))


def work(tested: LLMEngine, seed: int, steps: int) -> Iterator[list[list[int]]]:
    """Submit, cancel and step at random; yield after every step all that slots have ever held."""
    r, count, sequences = random.Random(seed), 0, {}
    for _ in range(steps):
        for _ in range(r.choice((0, 1, 2))):
            count += 1
            tested.submit(request(r, f"r{count}"))
        if count and r.random() < 0.1:
            tested.cancel(f"r{r.randint(1, count)}")
        tested.step()
        for slot, cached in enumerate(tested.slots.cached.tolist()):
            ids = tuple(tested.slots.sequences.tokens[slot, :cached].tolist())
            sequences[ids[:9]] = max(sequences.get(ids[:9], ()), ids, key=len)
            sequences[ids] = ids
        sequences = dict(list(sequences.items())[-300:])
        yield [list(ids) for ids in sequences.values()]


def options_of(pages: int | None, host_blocks: int, **more: Any) -> dict[str, Any]:
    """Return options of engines with room for so many blocks on the host."""
    with caches_of(pages):
        size = engine(SLOTS).execution.cache.form(BLOCK).size_bytes
    return {"host_cache_bytes": host_blocks * size, "host_block_tokens": BLOCK, "min_shared_tokens": 1, **more}


def reusable(tested: LLMEngine, ids: list[int]) -> int:
    """Return how many blocks of a prompt's beginning it would find."""
    return tested.prefixes.store.tokens_of(np.array([*ids, 2])) // BLOCK


OVERLAP = {"overlap": True, "token_budget": 5}


@pytest.mark.parametrize(
    ("pages", "host_blocks", "more"),
    [(None, 0, OVERLAP), (None, 12, {}), (None, 1000, OVERLAP), (30, 0, {}), (30, 12, OVERLAP), (30, 1000, {})],
    ids=str,
)
def test_the_router_knows_what_a_prompt_would_find(pages: int | None, host_blocks: int, more: dict[str, Any]) -> None:
    with caches_of(pages):
        tested = engine(SLOTS, **options_of(pages, host_blocks, **more))
    router, tree, events, most = Router(), Tree(), CacheEvents(BLOCK), 0
    events.events = Told(router, tree)
    for step, sequences in enumerate(work(tested, 3, 100)):
        events.update(tested)
        for ids in sequences if step % 5 == 0 else ():
            assert router.held(ids) == tree.held(ids) == reusable(tested, ids), (step, ids)
        assert router.size() == tree.size()
        most = max(most, router.size())
    assert most > (64 if host_blocks == 1000 else 12)  # more than slots or pages could hold
    assert tested.statistics.preemptions > 0
    assert tested.statistics.restored_tokens > 0 or not host_blocks


def test_files_of_an_earlier_process_are_told_at_once(tmp_path: Path) -> None:
    told, prompts = [], [[3 + index, *range(10, 34)] for index in range(4)]
    for _ in range(2):
        with caches_of(14):
            folder = CacheFolder(tmp_path, 1 << 30, "tiny")
            tested = engine(SLOTS, **options_of(14, 100, cache_folder=folder))
        router, events = Router(), CacheEvents(BLOCK)
        events.events = Told(router)
        events.update(tested)
        told.append([router.held(prompt) for prompt in prompts])
        assert told[-1] == [reusable(tested, prompt) for prompt in prompts]
        for index, prompt in enumerate(prompts):
            tested.submit(Request(str(index), prompt, settings(max_tokens=3, temperature=0, ignore_eos=True)))
            while tested.has_work:
                tested.step()
                events.update(tested)
        assert [router.held(prompt) for prompt in prompts] == [reusable(tested, prompt) for prompt in prompts]
        tested.close()
    assert told == [[0] * 4, [6] * 4]


def test_an_import_is_told_until_it_is_taken_and_then_its_slot_has_it() -> None:
    prompt, first = [*range(3, 43)], engine()
    run(first, [Request("a", prompt, settings(max_tokens=1, temperature=0))])
    saved = first.prefixes.export(prompt)
    assert saved is not None
    tested, router, events = engine(**options_of(None, 0)), Router(), CacheEvents(BLOCK)
    events.events = Told(router)
    events.update(tested)
    tested.prefixes.add(prompt, saved)
    events.update(tested)
    assert router.held(prompt) == 39 // BLOCK
    run(tested, [Request("b", prompt, settings(max_tokens=1, temperature=0))])
    events.update(tested)
    assert tested.statistics.imported_tokens == 39
    assert router.held(prompt) == router.size() == 40 // BLOCK


def test_sequences_of_recurrent_models_on_the_host_are_told() -> None:
    tested, router, events = (
        engine(2, "mamba2", host_cache_bytes=1 << 30, min_shared_tokens=1),
        Router(),
        CacheEvents(BLOCK),
    )
    events.events = Told(router)
    prompts = [[3 + index, *range(10, 41)] for index in range(6)]
    for index, prompt in enumerate(prompts):
        run(tested, [Request(str(index), prompt, settings(max_tokens=3, temperature=0, ignore_eos=True))])
        events.update(tested)
    assert [router.held(prompt) for prompt in prompts] == [8] * 6


class Told:
    """A publisher whose events listeners apply."""

    def __init__(self, *listeners: Router | Tree) -> None:
        self._listeners = listeners

    def publish_batch(self, events: Sequence[Event]) -> None:
        for listener in self._listeners:
            listener.apply(list(events))


def plain(*tokens: int, parent: bytes = START) -> Block:
    return block_after(parent, np.array(tokens, np.int64).tobytes())


def holds(*blocks: Block) -> list[Change]:
    return [Change(block.key, True, [block]) for block in blocks]


def lose(*blocks: Block) -> list[Change]:
    return [Change(block.key, False) for block in blocks]


FIRST = plain(1, 2, 3, 4)
SECOND = plain(5, 6, 7, 8, parent=FIRST.key)
THIRD = plain(9, 9, 9, 9, parent=SECOND.key)


def test_a_block_is_lost_with_its_last_holder() -> None:
    blocks = HeldBlocks(BLOCK)
    assert blocks.update(holds(FIRST, SECOND, FIRST)) == ([], [FIRST, SECOND])
    assert blocks.update(lose(FIRST)) == ([], [])
    assert blocks.update([*lose(FIRST), *holds(FIRST)]) == ([], [])
    assert blocks.update(lose(FIRST, SECOND)) == ([FIRST, SECOND], [])
    assert not blocks.reachable


def test_what_follows_a_lost_block_is_lost_until_it_is_back() -> None:
    blocks = HeldBlocks(BLOCK)
    blocks.update(holds(FIRST, SECOND, THIRD))
    assert blocks.update(lose(SECOND)) == ([SECOND, THIRD], [])
    assert blocks.update(lose(FIRST)) == ([FIRST], [])
    assert blocks.update(holds(SECOND)) == ([], [])
    assert blocks.update(holds(FIRST)) == ([], [FIRST, SECOND, THIRD])


def test_a_sequence_is_all_its_blocks() -> None:
    blocks, key = HeldBlocks(BLOCK), bytes(32)
    whole, short = Change(key, True, [FIRST, SECOND]), Change(bytes([1]) * 32, True, [FIRST])
    assert blocks.update([whole, whole, short]) == ([], [FIRST, SECOND])
    assert blocks.update([Change(key, False)]) == ([], [])
    assert blocks.update([Change(key, False)]) == ([SECOND], [])
    assert blocks.update([Change(short.key, False)]) == ([FIRST], [])
    assert blocks.update([Change(key, True), Change(key, False)]) == ([], [])


def test_blocks_with_images_and_of_adapters_are_not_told() -> None:
    """Their tokens are those of other blocks, and what is cached is not."""
    blocks, ids = HeldBlocks(BLOCK), np.arange(BLOCK, dtype=np.int64)
    image = block_after(START, ids.tobytes() + bytes(8))
    adapter = block_after(START, keyed(ids, 77).tobytes())
    after = [plain(1, 2, 3, 4, parent=each.key) for each in (image, adapter)]
    assert blocks.update(holds(image, adapter, *after)) == ([], [])
    assert blocks.update(lose(image, adapter, *after)) == ([], [])
    assert blocks.update(holds(plain(*range(BLOCK)))) == ([], [plain(*range(BLOCK))])


def test_blocks_of_the_cache_are_several_of_the_router() -> None:
    first, second = plain(*range(8)), plain(*range(8, 16), parent=plain(*range(8)).key)
    router = Router()
    router.apply(stored([first], BLOCK))
    router.apply(stored([second], BLOCK))
    assert sorted(router.blocks.values()) == [tuple(range(stop)) for stop in (4, 8, 12, 16)]
    router.apply(removed([second, first], BLOCK))
    assert not router.blocks


def slots_of(*sequences: list[int]) -> Slots:
    slots = Slots(len(sequences), 32)
    for slot, ids in enumerate(sequences):
        slots.sequences.start(slot, ids)
        slots.cached[slot] = len(ids)
    return slots


def test_only_slots_that_changed_are_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    slots = slots_of([*range(8)], [*range(9, 17)])
    blocks, looked = SlotBlocks(slots, BLOCK), []
    assert len(list(blocks.changes())) == 4
    replace = SlotBlocks._replace
    monkeypatch.setattr(
        SlotBlocks, "_replace", lambda *args, **more: (looked.append(args[1]), replace(*args, **more))[1]
    )
    slots.sequences.append(np.array([0, 1]), np.array([1, 2]))
    slots.cached += 1
    assert list(blocks.changes()) == []
    assert looked == []
    slots.cached[1] = 4
    assert [change.is_held for change in blocks.changes()] == [False]
    assert looked == [1]
