"""Paged caches and heads on a real tritonserver: requests share pages, and guesses change no answer."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from tests.support.served_heads import HEADS, SETTINGS, SPECULATE, build, local_answers
from tests.support.served_heads import LENGTH as GUESSED
from tests.support.served_heads import PROMPT as TEXT
from tests.support.served_llm import answers, metric, text
from tests.support.triton import serving
from trtkit import LLM, SamplingParams

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.conftest import Ran

PREFIX = list(range(40, 90))
"""50 tokens: three full pages of 16, and 2 tokens that each request computes."""
PROMPTS = [PREFIX, *([*PREFIX, tail, tail + 1] for tail in range(100, 106))]
LENGTH = 12
COUNTS = ("trtkit_drafted_tokens_total", "trtkit_accepted_tokens_total")


def test_requests_share_the_pages_of_their_prefix_and_guesses_change_none(
    tmp_path: Path, trtkit: Callable[..., Ran]
) -> None:
    bundle, words = build(tmp_path, "llm.kv=paged"), ("--repository", tmp_path / "models", "--name", "paged", "-q")
    too_many = trtkit("deploy", bundle, *words, "--set", f"llm.speculate={HEADS + 1}")
    assert f"speculate: {HEADS + 1} tokens to guess; the bundle's heads guess {HEADS}" in too_many.err
    assert trtkit("deploy", bundle, *words, "--set", f"llm.speculate={SPECULATE}").code == 0
    (plain, _), (_, counts) = (local_answers(bundle, speculate) for speculate in (0, SPECULATE))
    assert counts[0] > counts[1] > 0
    with LLM(bundle, speculate=0) as llm:
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
        before = [metric(served, name) for name in COUNTS]
        asked = [{"temperature": t, "seed": seed, "max_tokens": GUESSED, "ignore_eos": True} for t, seed in SETTINGS]
        assert [text(answers(served, "paged", text_input=TEXT, stream=True, **each)) for each in asked] == plain
        assert tuple(metric(served, name) - old for name, old in zip(COUNTS, before, strict=True)) == counts
