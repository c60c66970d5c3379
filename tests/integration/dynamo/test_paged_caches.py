"""Paged caches behind Dynamo's frontend: concurrent requests share the pages of a common prefix."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest

from tests.support import tiny_chat
from tests.support.dynamo import MODEL, serving
from trtkit import LLM, SamplingParams

if TYPE_CHECKING:
    from pathlib import Path

PREFIX = list(range(40, 90))
"""50 tokens: three full pages of 16, and 2 tokens that each request computes."""
PROMPTS = [PREFIX, *([*PREFIX, tail, tail + 1] for tail in range(100, 106))]
LENGTH = 12


@pytest.mark.slow
def test_requests_share_the_pages_of_their_prefix(tmp_path: Path) -> None:
    bundle = tiny_chat.build(tmp_path, "llm.kv=paged")
    with LLM(bundle) as llm:
        greedy = SamplingParams(temperature=0, max_tokens=LENGTH)
        expected = [output.outputs[0].text for output in llm.generate(PROMPTS, greedy)]
    with serving(bundle) as served, ThreadPoolExecutor(len(PROMPTS)) as pool:
        client, before = served.client(), served.metric("prompt_tokens_total")

        def ask(prompt: list[int]) -> Any:
            return client.completions.create(model=MODEL, prompt=prompt, max_tokens=LENGTH, temperature=0)

        outputs = [ask(PROMPTS[0]), *pool.map(ask, PROMPTS[1:])]
        assert [output.choices[0].text for output in outputs] == expected
        reused = [output.usage.prompt_tokens_details.cached_tokens for output in outputs]
        assert reused == [0] + [48] * (len(PROMPTS) - 1)
        assert served.metric("prompt_tokens_total") - before == sum(map(len, PROMPTS)) - sum(reused)
