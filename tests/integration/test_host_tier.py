"""Host memory holds caches that do not fit on the device and restores them, without changing a token."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest

from tests.integration.test_in_flight_batching import KINDS
from tests.support.generation import PAGE_TOKENS, SLOTS, Asked, alone, caches_of, engine, is_clean, run
from trtkit.llm.engine import LLMEngine, LookupProposer

if TYPE_CHECKING:
    from collections.abc import Mapping

BLOCKS: dict[str, Any] = {"host_block_tokens": PAGE_TOKENS, "min_shared_tokens": 1}
FAMILIES = ["llama", "gemma2", "deepseek_v2", "qwen3_next", "lfm2"]
QUICK = ("llama", "lfm2")
FEW = 14
"""Pages: not enough for the conversations below together."""


@dataclass
class Chat:
    """A conversation: what was said so far."""

    ids: list[int]
    turns: list[Asked] = field(default_factory=list)

    def ask(self, r: random.Random, params: Mapping[str, object]) -> Asked:
        """Return the next turn: everything said, and a few tokens more."""
        self.ids += [r.randrange(3, 67) for _ in range(3)]
        self.turns.append(Asked(tuple(self.ids), tuple(params.items())))
        return self.turns[-1]


def converse(tested: LLMEngine, model_type: str = "llama") -> list[int]:
    """Let five conversations of four turns take turns, one after another; return the tokens that each turn reused."""
    r, reused = random.Random(3), []
    chats = [Chat([r.randrange(3, 67) for _ in range(10)]) for _ in range(5)]
    for turn in range(4):
        for index, chat in enumerate(chats):
            asked = chat.ask(r, {"temperature": 0, "max_tokens": 6, "ignore_eos": True})
            finished = run(tested, [asked.request(f"{turn}-{index}")])[f"{turn}-{index}"]
            assert tuple(finished.token_ids) == alone(asked, model_type)
            chat.ids += finished.token_ids
            reused.append(finished.request.metrics.reused)
    assert is_clean(tested)
    return reused


@pytest.mark.parametrize(
    "model_type", [pytest.param(each, marks=() if each in QUICK else pytest.mark.slow) for each in FAMILIES]
)
@pytest.mark.parametrize("pages", [None, FEW], ids=["linear", "paged"])
def test_conversations_that_no_cache_holds_go_on_from_the_host(model_type: str, pages: int | None) -> None:
    with caches_of(pages):
        without = engine(SLOTS, model_type, host_cache_bytes=0, **BLOCKS)
        tested = engine(SLOTS, model_type, **BLOCKS)
        computed_again, reused = converse(without, model_type), converse(tested, model_type)
    assert without.statistics.restored_tokens == 0
    assert tested.statistics.restored_tokens > 0
    assert sum(reused) == tested.statistics.reused_tokens > 2 * sum(computed_again)
    assert tested.statistics.prompt_tokens + sum(reused) == without.statistics.prompt_tokens + sum(computed_again)
    is_whole = without.execution.cache.has_states
    for turn in range(1, 4):  # all of the turns before but the last token, which was never read
        known = 10 + 9 * turn - 1
        assert reused[5 * turn : 5 * turn + 5] == [known if is_whole else known - known % PAGE_TOKENS] * 5 or not pages
        assert min(reused[5 * turn : 5 * turn + 5]) >= known - known % PAGE_TOKENS


@pytest.mark.parametrize(
    ("options", "pages", "limit"),
    [
        ({}, None, 1 << 20),
        ({"overlap": True, "token_budget": 7}, 24, 30_000),
        ({"proposer": LookupProposer(3)}, 24, 1 << 20),
        pytest.param({"overlap": True, "token_budget": 7}, None, 1 << 20, marks=pytest.mark.slow),
        pytest.param({"proposer": LookupProposer(3)}, None, 30_000, marks=pytest.mark.slow),
        pytest.param({}, 24, 30_000, marks=pytest.mark.slow),
        pytest.param({}, 24, 1 << 20, marks=pytest.mark.slow),
    ],
    ids=[
        "slots", "few pages, small host, overlap", "few pages, speculation", "slots, overlap",
        "slots, small host, speculation", "few pages, small host", "few pages",
    ],
)  # fmt: skip
def test_turns_in_flight_get_what_each_gets_alone(options: dict[str, Any], pages: int | None, limit: int) -> None:
    """Conversations of all settings at once, with priorities; some are cancelled; the host holds them or does not."""
    r, found, asked = random.Random(5), 0, {}
    with caches_of(pages):
        tested = engine(SLOTS, host_cache_bytes=limit, **BLOCKS, **options)
    chats = {f"c{index}": Chat([7, 8, 9] * 2 + [r.randrange(3, 67) for _ in range(4)]) for index in range(9)}
    idle = list(chats)
    for step in range(400):
        if idle and step < 250 and r.random() < 0.6:
            name = idle.pop(r.randrange(len(idle)))
            each = chats[name].ask(r, {**r.choice(KINDS)(r), "max_tokens": r.randint(2, 6)})
            asked[name] = Asked(each.prompt, each.params, r.choice((0, 0, 1)))
            tested.submit(asked[name].request(name))
        if step % 40 == 39 and asked:
            tested.cancel(r.choice(sorted(asked)))
        for finished in tested.step():
            name = finished.request.id
            if finished.reason != "abort":
                found += 1
                assert tuple(finished.token_ids) == alone(Asked(asked[name].prompt, asked[name].params))
            del asked[name]
            chats[name].ids += finished.token_ids
            if len(chats[name].ids) < 45:
                idle.append(name)
            else:
                chats[name].ids = chats[name].ids[:9]
                idle.append(name)
        assert tested.host.size_bytes <= limit
        if step > 250 and not asked:
            break
    tested.step()
    assert found > 60
    assert tested.statistics.restored_tokens > 50
    assert tested.statistics.preemptions > 0
    assert not tested.host.retained_bytes
    assert is_clean(tested)
