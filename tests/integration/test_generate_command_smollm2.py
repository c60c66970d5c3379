"""SmolLM2-135M-Instruct from its shipped config: a golden text, a chat, a perplexity."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from trtkit.builder.build import build_bundle
from trtkit.config.load import load_config
from trtkit.jobs.runner import new_runner

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.conftest import Ran

    Run = Callable[..., Ran]

pytestmark = pytest.mark.slow

GRAVITY = (
    " a fundamental concept in physics that describes the curvature of spacetime caused by the presence of matter and"
    " energy."
)
SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 20}, "age": {"type": "integer", "maximum": 150}},
    "required": ["name", "age"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("smollm2") / "llama"
    config = load_config("llama", ("llm.logits=all",))
    return build_bundle(config, out, new_runner()).bundle.path


def test_greedy_text_is_the_golden_one(bundle: Path, trtkit: Run) -> None:
    words = ["--no-chat", "--prompt", "Gravity is", "--stop-strings", ".", "--include-stop", "-q"]
    assert trtkit("generate", bundle, *words).out == f"{GRAVITY}\n"
    assert trtkit("generate", bundle, *words, "--lookup", 4).out == f"{GRAVITY}\n"


def test_a_chat_answers_and_remembers(bundle: Path, monkeypatch: pytest.MonkeyPatch, trtkit: Run) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("What is the capital of France?\nAnd of Italy?\n"))
    ran = trtkit("chat", bundle, "-q")
    assert ran.out == "The capital of France is Paris.\nThe capital of Italy is Rome.\n"


def test_answers_of_a_file_are_those_of_each_alone(bundle: Path, tmp_path: Path, trtkit: Run) -> None:
    asked = [
        {"prompt": "What is the capital of France?"},
        {"prompt": "Write a haiku.", "temperature": 0.8, "seed": 1, "max_tokens": 20},
        {"prompt": "A person, as JSON.", "json_schema": SCHEMA, "max_tokens": 60},
    ]
    (tmp_path / "p.jsonl").write_text("\n".join(json.dumps(line) for line in asked))
    ran = trtkit("generate", bundle, "--prompts", tmp_path / "p.jsonl", "--json", "-q")
    found = {line["id"]: line for line in map(json.loads, ran.out.splitlines())}
    assert found[0]["text"] == "The capital of France is Paris."
    assert isinstance(json.loads(found[2]["text"])["age"], int)
    for index, line in enumerate(asked):
        (tmp_path / "one.jsonl").write_text(json.dumps(line))
        alone = trtkit("generate", bundle, "--prompts", tmp_path / "one.jsonl", "--json", "-q").json()
        assert alone["token_ids"] == found[index]["token_ids"]


def test_perplexity_is_that_of_verification(bundle: Path, trtkit: Run) -> None:
    text = Path(__file__).parents[2] / "LICENSE"
    ran = trtkit("eval", bundle, "--perplexity", text, "--windows", 4, "--json", "-q")
    assert ran.json()["perplexity"] == pytest.approx(17.86, rel=1e-2)  # transformers' in fp32
    assert ran.json()["tokens"] == 2048
