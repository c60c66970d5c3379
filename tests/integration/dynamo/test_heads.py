"""Draft heads behind Dynamo's frontend: answers are the same as without, and metrics count guesses."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.support.dynamo import MODEL, serving
from tests.support.served_heads import HEADS, LENGTH, PROMPT, SETTINGS, SPECULATE, build, local_answers

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.conftest import Ran


@pytest.mark.slow
def test_guesses_change_no_answer_and_are_counted(tmp_path: Path, trtkit: Callable[..., Ran]) -> None:
    bundle = build(tmp_path)
    too_many = trtkit("serve", bundle, "--speculate", HEADS + 1)
    assert f"--speculate: {HEADS + 1} tokens to guess; the bundle's heads guess {HEADS}" in too_many.err
    (plain, _), (_, counts) = (local_answers(bundle, speculate) for speculate in (0, SPECULATE))
    with serving(bundle, speculate=SPECULATE) as served:
        names, client = ("drafted_tokens_total", "accepted_tokens_total"), served.client()
        before = [served.metric(name) for name in names]
        options = [{"temperature": t, "seed": seed, "extra_body": {"ignore_eos": True}} for t, seed in SETTINGS]
        asked = {"model": MODEL, "prompt": PROMPT, "max_tokens": LENGTH}
        texts = [client.completions.create(**asked, **each).choices[0].text for each in options]
        assert texts == plain
        assert tuple(served.metric(name) - old for name, old in zip(names, before, strict=True)) == counts
    assert counts[0] > counts[1] > 0
