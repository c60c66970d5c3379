"""Prompts with a common prefix are routed to the worker that has it cached."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest

from tests.support import tiny_chat
from tests.support.dynamo import MODEL, serving

if TYPE_CHECKING:
    from pathlib import Path

STEMS, LENGTH, ROUNDS = "abc", 64, 6  # four pages of 16


def computed(bundle: Path, router: str) -> float:
    """Return how many tokens of prompts two workers compute for prompts of three beginnings, in turn."""
    with serving(bundle, replicas=2, router=router) as served:
        client, before = served.client(), served.metric("prompt_tokens_total")
        for count in range(ROUNDS):
            for stem in STEMS:
                client.completions.create(model=MODEL, prompt=stem * LENGTH + str(count), max_tokens=2, temperature=0)
        return served.metric("prompt_tokens_total") - before


@pytest.mark.slow
@pytest.mark.parametrize("kv", ["linear", "paged"])
def test_each_beginning_is_computed_once_where_the_router_knows_the_caches(kv: str, tmp_path: Path) -> None:
    bundle = tiny_chat.build(tmp_path, f"llm.kv={kv}")
    by_cache, in_turn = computed(bundle, "kv"), computed(bundle, "round-robin")
    alone = len(STEMS) * (LENGTH + ROUNDS)
    assert by_cache < 1.5 * alone
    assert in_turn > 1.9 * len(STEMS) * LENGTH


@pytest.mark.slow
def test_beginnings_that_only_the_host_still_has_are_found_there(tmp_path: Path) -> None:
    """Two workers of three slots and ten beginnings: a slot has lost its tokens when the same beginning comes again."""
    with serving(tiny_chat.build(tmp_path), replicas=2) as served, ThreadPoolExecutor(10) as pool:
        client = served.client()

        def ask(prompt: str) -> None:
            client.completions.create(model=MODEL, prompt=prompt, max_tokens=2, temperature=0)

        list(pool.map(ask, [stem * LENGTH + "0" for stem in "abcdefghij"]))  # at once, so both workers get some
        computed = served.metric("prompt_tokens_total")
        for count in range(1, 4):
            for stem in "abcdefghij":
                ask(stem * LENGTH + str(count))
        assert served.metric("prompt_tokens_total") == computed
        assert served.metric("restored_tokens_total") > 10 * LENGTH
