"""Refusals of `trtkit generate` and related commands, and their texts."""

from __future__ import annotations

import json
import shutil
from typing import TYPE_CHECKING, Any

import pytest
import torch

from tests.support.models import classifier, save
from tests.support.tiny_chat import LENGTH

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.conftest import Ran

    Run = Callable[..., Ran]


def test_bad_lines_are_told_before_anything_runs(tiny_bundle: Path, workspace: Path, refuses: Any) -> None:
    objects = (
        {"prompt": "a", "tempratur": 1},
        {"prompt": "a " * LENGTH},
        {"prompt": "a", "eos_token_id": "<|end|>"},
    )
    (workspace / "p.jsonl").write_text("\n".join(['{"prompt": "a"}', "{", *map(json.dumps, objects)]))
    said = refuses("generate", tiny_bundle, "--prompts", "p.jsonl", code=2)
    assert said == (
        "the prompts cannot be used; nothing was run\n"
        "  p.jsonl:2: invalid JSON: Expecting property name enclosed in double quotes: line 1 column 2 (char 1)\n"
        '    fix: write one object per line: {"prompt": "Gravity is"}; plain lines need a name that ends in .txt\n'
        "  p.jsonl:3: tempratur: unknown setting\n"
        "    fix: did you mean `temperature`?\n"
        f"  p.jsonl:4: the prompt has 114 tokens; a slot holds {LENGTH}\n"
        "    fix: shorten it, or build with a larger `llm.max_sequence_length`\n"
        "  p.jsonl:5: eos_token_id: `<|end|>` is not a single token of this model\n"
        "    fix: did you mean `<|im_end|>`?"
    )


@pytest.mark.parametrize(
    ("words", "code", "expected"),
    [
        (
            ["--slots", 0],
            2,
            "--slots: 0 slots requested; the engine takes 1 to 3\nfix: use 1 to 3, or build with a larger `llm.",
        ),
        (["--slots", 4], 2, "--slots: 4 slots requested; the engine takes 1 to 3\n"),
        (
            ["--lookup", 2, "--draft", "x"],
            2,
            "--lookup, --draft: `draft` and `lookup` cannot be combined\nfix: choose one",
        ),
        (["--prefill-budget", 0], 2, "--prefill-budget: a budget of 0 tokens per step computes nothing"),
        (["--runtime", "tensorrt"], 1, "no GPU to run the engine\nfix: use `--runtime reference`"),
        (
            ["--num-beams", 4],
            2,
            "the prompts cannot be used; nothing was run\n  prompt 0: num_beams: 4 beams need 4 slots",
        ),
        (
            ["--num-beams", 2, "--temperature", 0.5],
            2,
            "the options cannot be used\n"
            "  --temperature: `0.5` with `num_beams=2`: beam search does not sample\n"
            "    fix: leave out `temperature`, or set `do_sample`",
        ),
        (
            ["--eos-token-id", "<|end|>"],
            2,
            "the options cannot be used\n  --eos-token-id: `<|end|>` is not a single token",
        ),
        (["--prompts", "no.jsonl"], 2, "no.jsonl: the prompts cannot be read: No such file or directory"),
        (["--regex", "("], 2, "the prompts cannot be used; nothing was run\n  prompt 0: "),
    ],
)
def test_what_cannot_be_is_refused(
    words: list[Any], code: int, expected: str, tiny_bundle: Path, refuses: Callable[..., str]
) -> None:
    if words[0] == "--runtime" and torch.cuda.is_available():
        pytest.skip("a GPU is here")
    assert refuses("generate", tiny_bundle, "--prompt", "a", *words, code=code).startswith(expected)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (
            ["--prompt", "a", "--no-chat", "--system", "b"],
            "Error: --system needs the chat template: leave out --no-chat\n",
        ),
        (["--prompt", "a", "--logprobs", "1"], "Error: --logprobs is only included in JSON: add --json\n"),
        (["--prompt", "a", "--top-k", "x"], "Error: Invalid value for '--top-k': 'x' is not a valid integer.\n"),
    ],
)
def test_options_that_do_not_go_together_are_wrong_usage(words: list[str], expected: str, trtkit: Run) -> None:
    ran = trtkit("generate", "bundles/m", *words)
    assert (ran.code, ran.out) == (2, "")
    assert ran.err.endswith(expected)


def test_nothing_to_answer_is_wrong_usage(tiny_bundle: Path, trtkit: Run) -> None:
    ran = trtkit("generate", tiny_bundle)
    assert (ran.code, ran.out) == (2, "")
    assert ran.err.endswith("Error: nothing to answer: give TEXT, --audio FILE or --prompts FILE\n")


@pytest.mark.parametrize("command", [["generate", "--prompt", "a"], ["chat"], ["eval", "--perplexity", "t.txt"]])
def test_only_language_models_are_taken(command: list[str], workspace: Path, trtkit: Run, refuses: Any) -> None:
    assert refuses(command[0], "nowhere", *command[1:]) == (
        "nowhere: no such bundle\n"
        "fix: `trtkit list` shows bundles and shipped configs; `trtkit build MODEL` builds a bundle"
    )
    save(classifier(batch=1), workspace / "m.onnx")
    (workspace / "m.yaml").write_text("source: {onnx: m.onnx}\n")
    assert trtkit("build", "m.yaml").code == 0
    assert refuses(command[0], "bundles/m", *command[1:]) == (
        "bundles/m: the bundle does not hold a language model\n"
        "fix: give a language model's bundle; `trtkit run` runs other models"
    )


def test_an_error_is_json_where_json_was_asked(tiny_bundle: Path, trtkit: Run) -> None:
    ran = trtkit("generate", tiny_bundle, "--prompt", "", "--json")
    assert ran.code == 2
    assert ran.json()["problems"] == [{"what": "the prompt is empty", "where": "--prompt", "fix": ""}]


@pytest.mark.parametrize(
    "words",
    [
        ("generate", "b", "--prompt", "Gravity is"),
        ("chat", "b"),
        ("eval", "b", "--perplexity", "p.txt"),
        ("verify", "b", "-q"),
        ("inspect", "b"),
        ("bench", "b", "--unverified", "-q"),
        ("deploy", "b", "--to", "triton", "--repository", "r", "-q"),
    ],
)
def test_a_tokenizer_with_swapped_ids_is_refused(
    words: tuple[str, ...], tiny_bundle: Path, workspace: Path, refuses: Callable[..., str]
) -> None:
    shutil.copytree(tiny_bundle, workspace / "b")
    (workspace / "p.txt").write_text("Gravity is")
    file = workspace / "b/model/tokenizer.json"
    data = json.loads(file.read_text())
    first, second, *_ = data["model"]["vocab"]
    vocab = data["model"]["vocab"]
    vocab[first], vocab[second] = vocab[second], vocab[first]
    file.write_text(json.dumps(data))
    assert refuses(*words) == (
        "b/model/tokenizer.json: the file has changed since the build: SHA-256 mismatch\nfix: build the bundle again"
    )
