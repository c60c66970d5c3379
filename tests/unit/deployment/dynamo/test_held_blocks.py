"""After every step, what the events say is what the slots hold: by a plain set, and by Dynamo's own radix tree."""

from __future__ import annotations

import json
import random
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from tests.support.generation import SLOTS, engine, settings
from trtkit.deployment.dynamo.cache_events import Event, HeldBlocks, HeldPages
from trtkit.llm.cache import PageChange
from trtkit.llm.engine import Request
from trtkit.llm.scheduler import SchedulingParams
from trtkit.llm.scheduler.slots import Slots
from trtkit.llm.sequences import AdapterId, keyed

if TYPE_CHECKING:
    from trtkit.llm.engine import LLMEngine

BLOCK = 4
KINDS: tuple[dict[str, Any], ...] = ({"temperature": 0}, {"temperature": 1.0, "seed": 3}, {"num_beams": 3})


class Router:
    """What events alone say: the tokens up to each block's end, by its hash."""

    def __init__(self) -> None:
        self.blocks: dict[int, tuple[int, ...]] = {}

    def apply(self, events: list[Event]) -> None:
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


def held(slots: Slots) -> set[tuple[int, ...]]:
    """Return the tokens up to the end of every full block of every slot."""
    blocks = set()
    for slot in range(slots.count):
        tokens = slots.sequences.tokens[slot, : slots.cached[slot]].tolist()
        assert -1 not in tokens
        blocks |= {tuple(tokens[:end]) for end in range(BLOCK, len(tokens) + 1, BLOCK)}
    return blocks


def request(r: random.Random, name: str) -> Request:
    """Return a request whose prompt often begins like another's."""
    stem = [5, 9, 13, 17, 21, 25, 29, 33, 37, 41, 45, 49] * 2
    prompt = stem[: r.randint(0, 24)] + [r.randrange(3, 67) for _ in range(r.randint(1, 12))]
    params = {"max_tokens": r.randint(2, 30), **r.choice(KINDS)}
    return Request(name, prompt, settings(**params), SchedulingParams(r.choice((0, 1, 2))))


def work(tested: LLMEngine, seed: int, steps: int) -> Any:
    """Submit, cancel and step at random; yield after every step."""
    r, count = random.Random(seed), 0
    for _ in range(steps):
        for _ in range(r.choice((0, 1, 2))):
            count += 1
            tested.submit(request(r, f"r{count}"))
        if count and r.random() < 0.1:
            tested.cancel(f"r{r.randint(1, count)}")
        tested.step()
        yield


@pytest.mark.parametrize(
    "options",
    [{}, {"overlap": True}, {"min_shared_tokens": 1, "token_budget": 5}, {"overlap": True, "min_shared_tokens": 1}],
    ids=str,
)
@pytest.mark.parametrize("listener", [Router, Tree])
def test_events_say_what_the_slots_hold(options: dict[str, Any], listener: type[Router] | type[Tree]) -> None:
    tested, told, blocks, most = engine(SLOTS, **options), listener(), HeldBlocks(SLOTS, BLOCK), 0
    for _ in work(tested, 3, 150):
        told.apply(blocks.changes(tested.slots))
        want = held(tested.slots)
        most = max(most, len(want))
        assert len(blocks) == len(want)
        if isinstance(told, Router):
            assert set(told.blocks.values()) == want
        else:
            assert told.size() == len(want)
            assert all(told.held(list(ids)) == len(ids) // BLOCK for ids in want)
    assert most > 12
    assert tested.statistics.preemptions > 0


def slots_of(*sequences: list[int]) -> Slots:
    slots = Slots(len(sequences), 32)
    for slot, ids in enumerate(sequences):
        slots.sequences.start(slot, ids)
        slots.cached[slot] = len(ids)
    return slots


def test_a_block_is_gone_with_its_last_holder() -> None:
    first, second, third = [*range(8)], [*range(4), 9, 9, 9, 9], [*range(3)]
    slots, blocks, router = slots_of(first, second, third), HeldBlocks(3, BLOCK), Router()
    events = blocks.changes(slots)
    assert [event["type"] for event in events] == ["stored", "stored"]
    assert [len(event["block_hashes"]) for event in events] == [2, 1]
    router.apply(events)
    slots.cached[0] = 2
    events = blocks.changes(slots)
    assert [(event["type"], len(event["block_hashes"])) for event in events] == [("removed", 1)]
    router.apply(events)
    assert set(router.blocks.values()) == {tuple(range(4)), tuple(second)}
    slots.cached[1] = 3
    router.apply(blocks.changes(slots))
    assert not router.blocks
    assert not len(blocks)
    assert blocks.changes(slots) == []


def test_a_block_that_moves_between_slots_is_not_told() -> None:
    slots, blocks = slots_of([*range(8)], [7, 7]), HeldBlocks(2, BLOCK)
    assert len(blocks.changes(slots)) == 1
    slots.sequences.start(1, [*range(8)])
    slots.cached[:] = 0, 8
    assert blocks.changes(slots) == []


def test_only_slots_that_changed_are_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    slots, blocks, looked = slots_of([*range(8)], [*range(9, 17)]), HeldBlocks(2, BLOCK), []
    blocks.changes(slots)
    replace = HeldBlocks._replace
    monkeypatch.setattr(HeldBlocks, "_replace", lambda *args: (looked.append(args[1]), replace(*args))[1])
    slots.sequences.append(np.array([0, 1]), np.array([1, 2]))
    slots.cached += 1
    assert blocks.changes(slots) == []
    assert looked == []
    slots.cached[1] = 4
    blocks.changes(slots)
    assert looked == [1]


def test_slots_with_images_are_not_told() -> None:
    slots, blocks = slots_of([*range(8)]), HeldBlocks(1, BLOCK)
    slots.sequences.soft[0] = object()  # type: ignore[assignment]
    assert blocks.changes(slots) == []
    slots.sequences.start(0, [*range(8)])
    assert len(blocks.changes(slots)) == 1


def test_slots_and_pages_of_adapters_are_not_told() -> None:
    """Their tokens are those of other slots and pages, and what is cached is not."""
    slots, blocks = slots_of([*range(8)]), HeldBlocks(1, BLOCK)
    slots.sequences.start(0, [*range(8)], adapter=AdapterId(1, 77))
    assert blocks.changes(slots) == []
    slots.sequences.start(0, [*range(8)])
    assert len(blocks.changes(slots)) == 1
    pages, ids = HeldPages(BLOCK, BLOCK), np.arange(BLOCK, dtype=np.int64)
    assert pages.changes([PageChange(3, content=keyed(ids, 77).tobytes())]) == []
    assert pages.changes([PageChange(4, 3, keyed(ids, 77).tobytes())]) == []
    assert len(pages.changes([PageChange(5, content=ids.tobytes())])) == 1
