"""Paged caches on a real tritonserver: concurrent requests share the pages of a common prefix."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from tests import tiny_chat
from tests.served_llm import answers, metric, text
from tests.triton import serving
from trtkit import LLM, SamplingParams
from trtkit.cli.main import main

if TYPE_CHECKING:
    from pathlib import Path

PREFIX = list(range(40, 90))
"""50 tokens: three full pages of 16, and 2 tokens that each request computes."""
PROMPTS = [PREFIX, *([*PREFIX, tail, tail + 1] for tail in range(100, 106))]
LENGTH = 12


def test_requests_share_the_pages_of_their_prefix(tmp_path: Path) -> None:
    bundle = tiny_chat.build(tmp_path, "llm.kv=paged")
    main(["deploy", str(bundle), "--repository", str(tmp_path / "models"), "--name", "paged", "-q"])
    with LLM(bundle) as llm:
        greedy = SamplingParams(temperature=0, max_tokens=LENGTH)
        expected = [output.outputs[0] for output in llm.generate(PROMPTS, greedy)]
    with serving(tmp_path / "models") as served, ThreadPoolExecutor(len(PROMPTS)) as pool:

        def ask(prompt: list[int]) -> list[dict[str, Any]]:
            lengths = {"input_lengths": len(prompt), "max_tokens": LENGTH}
            return answers(served, "paged", input_ids=prompt, stream=True, **lengths)

        outputs = [ask(PROMPTS[0]), *pool.map(ask, PROMPTS[1:])]
        for pieces, wanted in zip(outputs, expected, strict=True):
            assert text(pieces) == wanted.text
            assert [token for each in pieces for token in each["output_ids"].reshape(-1)] == list(wanted.token_ids)
        reused = 48 * (len(PROMPTS) - 1)
        assert metric(served, "trtkit_reused_tokens_total") == reused
        assert metric(served, "trtkit_prompt_tokens_total") == sum(map(len, PROMPTS)) - reused
