"""Prompts that begin alike go where their beginning is cached."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.dynamo import MODEL, serving

if TYPE_CHECKING:
    from pathlib import Path

STEMS, LENGTH, ROUNDS = "abc", 60, 6


def computed(bundle: Path, router: str) -> float:
    """Return how many tokens of prompts two workers compute for prompts of three beginnings, in turn."""
    with serving(bundle, replicas=2, router=router) as served:
        client, before = served.client(), served.metric("prompt_tokens_total")
        for count in range(ROUNDS):
            for stem in STEMS:
                client.completions.create(model=MODEL, prompt=stem * LENGTH + str(count), max_tokens=2, temperature=0)
        return served.metric("prompt_tokens_total") - before


@pytest.mark.slow
def test_each_beginning_is_computed_once_where_the_router_knows_the_caches(chat_bundle: Path) -> None:
    by_cache, in_turn = computed(chat_bundle, "kv"), computed(chat_bundle, "round-robin")
    alone = len(STEMS) * (LENGTH + ROUNDS)
    assert by_cache < 1.5 * alone
    assert in_turn > 1.9 * len(STEMS) * LENGTH
