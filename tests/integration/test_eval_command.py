"""`trtkit eval` on a tiny model: perplexity against transformers, and unreadable texts."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import pytest
import torch
from transformers import AutoModelForCausalLM

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.conftest import Ran
    from trtkit.runtime.text import Tokenizer

    Run = Callable[..., Ran]


def test_perplexity_is_that_of_transformers(
    tiny_folder: Path, tiny_bundle: Path, tiny_tokenizer: Tokenizer, workspace: Path, trtkit: Run
) -> None:
    text = "Gravity is a fundamental concept. " * 20
    (workspace / "t.txt").write_text(text)
    ids = tiny_tokenizer.encode(text)
    hf = AutoModelForCausalLM.from_pretrained(tiny_folder / "model", dtype=torch.float32)
    windows = [torch.tensor([ids[start : start + 40]]) for start in (0, 40, 80)]
    with torch.inference_mode():
        losses = [float(hf(window, labels=window).loss) for window in windows]
    ran = trtkit("eval", tiny_bundle, "--perplexity", "t.txt", "--windows", 3, "--window-tokens", 40, "--json")
    assert ran.code == 0, ran.err
    found = ran.json()
    assert found["perplexity"] == pytest.approx(math.exp(sum(losses) / 3), rel=1e-5)
    assert (found["windows"], found["window_tokens"], found["tokens"]) == (3, 40, 120)
    assert found["tokens_per_second"] > 0
    assert "reference executor" in found["runtime"]
    shown = trtkit("eval", tiny_bundle, "--perplexity", "t.txt", "--windows", 3, "--window-tokens", 40, "-q")
    assert f"perplexity  {found['perplexity']:.4f}" in shown.out
    same = trtkit("eval", tiny_bundle, "--compare", tiny_bundle, "--perplexity", "t.txt", "--window-tokens", 40, "-q")
    assert "+0.00%, 0.0000 nats per token" in same.out
    assert "same top token  100.0%" in same.out
    everything = trtkit("eval", tiny_bundle, "--perplexity", "t.txt", "--windows", 0, "--window-tokens", 40, "--json")
    assert everything.json()["windows"] == len(ids) // 40


def test_a_text_that_cannot_be_read_is_refused(tiny_bundle: Path, workspace: Path, refuses: Callable[..., str]) -> None:
    assert refuses("eval", tiny_bundle, "--perplexity", "no.txt") == (
        "no.txt: the text cannot be read: No such file or directory\nfix: give a UTF-8 text file"
    )
    (workspace / "t.txt").write_text("a")
    assert refuses("eval", tiny_bundle, "--perplexity", "t.txt") == (
        "t.txt: the text has 1 tokens; at least two are needed\nfix: give a longer text"
    )


def test_questions_are_answered_as_transformers_answers_them(
    tiny_bundle: Path, tiny_tokenizer: Tokenizer, greedy: Callable[[list[int], int], list[int]], trtkit: Run
) -> None:
    ran = trtkit("eval", tiny_bundle, "--questions", "--compare", tiny_bundle, "--json")
    questions = ran.json()["questions"]
    assert (questions["of"], questions["right"]) == (16, questions["compared_right"])
    first = questions["answers"][0]
    prompt = tiny_tokenizer.chat([{"role": "user", "content": first["question"]}])
    expected = [token for token in greedy(prompt, 24) if token not in tiny_tokenizer.eos_token_ids]
    assert first["text"] == tiny_tokenizer.decode(expected).strip()


def test_nothing_to_evaluate_on_is_refused(tiny_bundle: Path, trtkit: Run) -> None:
    ran = trtkit("eval", tiny_bundle)
    assert ran.code == 2
    assert "give --perplexity FILE, --questions or --tasks for a language model" in ran.err
