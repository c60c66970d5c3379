"""Options become settings: transformers' names, greedy by default, a line's own before the options."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

from tests.unit.runtime.text.tokenizers import byte_level
from trtkit.bundle.bundle import Bundle
from trtkit.bundle.manifest import Manifest
from trtkit.cli.sampling_options import FLAGS, faults_by_option, flag_of, read_settings, sampling_options
from trtkit.errors import RequestError
from trtkit.llm import (
    PreparedPrompt,
    PromptLine,
    PromptLines,
    PromptsError,
    TextBundle,
    prepare_prompts,
    sampling_params,
)
from trtkit.llm.sampling.params import SamplingParams

TOKENIZER = byte_level()
BUNDLE = Bundle(Path("bundles/m"), Manifest.model_construct())
MODEL = TextBundle(BUNDLE, TOKENIZER, 500, 32, 3, True)
BARE = TextBundle(BUNDLE, None, 67, 32, 3, True)


def given(*words: str) -> dict[str, Any]:
    """Return the settings that options make."""
    found: dict[str, Any] = {}

    @click.command()
    @sampling_options
    def command(**options: Any) -> None:
        found.update(read_settings(options))

    ran = CliRunner().invoke(command, words)
    if ran.exception and not isinstance(ran.exception, SystemExit):
        raise ran.exception
    assert ran.exit_code in (0, 2)
    if ran.exit_code:
        raise click.UsageError(ran.output)
    return found


def params(*words: str, line: dict[str, Any] | None = None) -> SamplingParams:
    return sampling_params(MODEL, given(*words), line)


def test_every_setting_has_an_option() -> None:
    assert {flag.name for flag in FLAGS} == {item.name for item in fields(SamplingParams)} - {"logits_processors"}


def test_without_options_an_answer_is_greedy_and_short() -> None:
    assert params() == SamplingParams(temperature=0, max_tokens=128)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--do-sample"], {"do_sample": True}),
        (["--no-do-sample"], {"temperature": 0}),
        (["--top-k", "5"], {"top_k": 5}),
        (["--seed", "1"], {"seed": 1}),
        (["--temperature", "0"], {"temperature": 0}),
        (["--num-beams", "3", "--num-return-sequences", "2"], {"temperature": 0, "num_beams": 3, "n": 2}),
        (
            ["--num-beams", "4", "--num-beam-groups", "2", "--diversity-penalty", "0.5"],
            {"temperature": 0, "num_beams": 4, "num_beam_groups": 2, "diversity_penalty": 0.5},
        ),
        (["--num-beams", "3", "--do-sample"], {"num_beams": 3, "do_sample": True}),
        (["--early-stopping", "true", "--num-beams", "2"], {"temperature": 0, "num_beams": 2, "early_stopping": True}),
        (["--early-stopping", "never"], {"temperature": 0, "early_stopping": "never"}),
        (["--max-tokens", "7", "--min-tokens", "2"], {"temperature": 0, "max_tokens": 7, "min_tokens": 2}),
        (["--stop-strings", "a", "--stop-strings", "b"], {"temperature": 0, "stop": ("a", "b")}),
        (["--bad-words", "a", "--force-words", "b"], {"temperature": 0, "bad_words": ("a",), "force_words": ("b",)}),
        (["--eos-token-id", "5"], {"temperature": 0, "stop_token_ids": (5,)}),
        (["--choice", "a", "--choice", "b"], {"temperature": 0, "guided_choice": ("a", "b")}),
        (["--json-schema", '{"type": "object"}'], {"temperature": 0, "guided_json": {"type": "object"}}),
        (
            ["--include-stop", "--ignore-eos"],
            {"temperature": 0, "include_stop_str_in_output": True, "ignore_eos": True},
        ),
        (["--logprobs", "0"], {"temperature": 0, "logprobs": 0}),
    ],
)
def test_options_are_settings(words: list[str], expected: dict[str, Any]) -> None:
    assert params(*words) == SamplingParams(**{"max_tokens": 128, **expected})


def test_tokens_are_named_by_id_or_text() -> None:
    end, a = TOKENIZER.token_id("<|im_end|>"), TOKENIZER.encode("a")[0]
    found = params("--eos-token-id", "<|im_end|>", "--logit-bias", "a=-1.5", "--logit-bias", "7=2")
    assert found.stop_token_ids == (end,)
    assert found.logit_bias == {a: -1.5, 7: 2.0}
    line = {"eos_token_id": ["<|im_end|>", 9], "logit_bias": {"8": 1, "a": 2}}
    found = params(line=line)
    assert found.stop_token_ids == (end, 9)
    assert found.logit_bias == {8: 1.0, a: 2.0}


def test_schema_and_grammar_are_read_from_files(tmp_path: Path) -> None:
    (tmp_path / "s.json").write_text('{"type": "array"}')
    (tmp_path / "g.lark").write_text('start: "a"')
    assert params("--json-schema", str(tmp_path / "s.json")).guided_json == {"type": "array"}
    assert params("--grammar", str(tmp_path / "g.lark")).guided_grammar == 'start: "a"'


@pytest.mark.parametrize(
    ("words", "line", "expected"),
    [
        (["--max-tokens", "5"], {"max_tokens": 9}, {"temperature": 0, "max_tokens": 9}),
        (["--temperature", "0.5", "--top-k", "3"], {"temperature": 0.7}, {"temperature": 0.7, "top_k": 3}),
        (["--temperature", "0.5"], {"do_sample": False}, {"temperature": 0}),
        (["--no-do-sample"], {"temperature": 0.7}, {"temperature": 0.7}),
        ([], {"top_p": 0.5, "max_new_tokens": 3}, {"top_p": 0.5, "max_tokens": 3}),
        (["--stop-strings", "a"], {"stop_strings": ["b"]}, {"temperature": 0, "stop": ("b",)}),
        (["--logprobs", "3"], {"logprobs": None}, {"temperature": 0}),
    ],
)
def test_a_lines_settings_win(words: list[str], line: dict[str, Any], expected: dict[str, Any]) -> None:
    assert params(*words, line=line) == SamplingParams(**{"max_tokens": 128, **expected})


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--logit-bias", "15"], "--logit-bias `15` is not TOKEN=VALUE, such as `15=-100`"),
        (["--logit-bias", "a=b"], "--logit-bias `a=b` is not TOKEN=VALUE, such as `15=-100`"),
        (["--grammar", "no.lark"], "--grammar `no.lark` cannot be read: No such file or directory"),
        (["--json-schema", "no.json"], "--json-schema `no.json` cannot be read: No such file or directory"),
    ],
)
def test_options_that_cannot_be_read_say_so(words: list[str], expected: str) -> None:
    with pytest.raises(click.UsageError) as raised:
        given(*words)
    assert expected in str(raised.value)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (
            ["--eos-token-id", "<|im_edn|>", "--top-p", "3"],
            "  --eos-token-id: `<|im_edn|>` is not a single token of this model\n"
            "    fix: did you mean `<|im_end|>` or `<|im_start|>`?\n"
            "  --top-p: `3.0` is not a finite number above 0 and at most 1\n"
            "    fix: 1 keeps every token; `temperature=0` takes the most likely one",
        ),
        (
            ["--logit-bias", "500=1"],
            "  --logit-bias: token 500 is not below the size of the vocabulary, 500",
        ),
        (
            ["--eos-token-id", "zzz yyy"],
            "  --eos-token-id: `zzz yyy` is not a single token of this model\n"
            "    fix: give a token id, or the token's text as in the vocabulary",
        ),
        (
            ["--do-sample", "--temperature", "0"],
            "  --do-sample: `true` with `temperature=0`\n    fix: raise `temperature`, or leave out `do_sample`",
        ),
    ],
)
def test_options_that_cannot_be_used_are_named_as_they_were_written(words: list[str], expected: str) -> None:
    with pytest.raises(PromptsError) as raised, faults_by_option():
        sampling_params(MODEL, given(*words))
    assert str(raised.value) == f"the options cannot be used\n{expected}"


def test_a_token_by_text_needs_a_tokenizer() -> None:
    with pytest.raises(RequestError, match="`a`: the bundle has no tokenizer"):
        sampling_params(BARE, {"stop_token_ids": ["a"]})


def test_flag_of_names_the_first_word() -> None:
    assert (flag_of("do_sample"), flag_of("n"), flag_of("other")) == (
        "--do-sample",
        "--num-return-sequences",
        "other",
    )


def prepared(model: TextBundle, *prompts: PromptLine) -> list[PreparedPrompt]:
    return prepare_prompts(PromptLines(list(prompts)), model, {})


def test_a_text_goes_through_the_tokenizer_and_ids_as_they_are() -> None:
    first, second = prepared(MODEL, PromptLine(0, "Gravity"), PromptLine(1, [5, 6], "prompt_token_ids"))
    assert first.read.ids == TOKENIZER.encode("Gravity")
    assert second.read.ids == [5, 6]


@pytest.mark.parametrize(
    ("model", "prompt", "expected"),
    [
        (
            MODEL,
            PromptLine("a", "Gravity " * 40, file="p.jsonl", line=3),
            "p.jsonl:3: the prompt has {tokens} tokens; a slot holds 32\n"
            "    fix: shorten it, or build with a larger `llm.max_sequence_length`",
        ),
        (
            MODEL,
            PromptLine(0, [1, 500], "prompt_token_ids"),
            "prompt 0: token 500 is not in the vocabulary\n    fix: use 0 to 499",
        ),
        (
            BARE,
            PromptLine(0, "Gravity"),
            "prompt 0: the bundle has no tokenizer, so prompts are token ids\n"
            '    fix: give {{"prompt_token_ids": [...]}} in a JSONL file with --prompts',
        ),
        (
            MODEL,
            PromptLine(0, [{"role": "user", "content": "a"}], "messages"),
            "prompt 0: the tokenizer has no chat template\n    fix: give plain text",
        ),
        (
            MODEL,
            PromptLine(0, "a", file="p.jsonl", line=1, settings={"tempratur": 1}),
            "p.jsonl:1: tempratur: unknown setting\n    fix: did you mean `temperature`?",
        ),
    ],
)
def test_a_prompt_that_cannot_run_says_where_and_why(model: TextBundle, prompt: PromptLine, expected: str) -> None:
    with pytest.raises(PromptsError) as raised:
        prepared(model, prompt)
    tokens = len(TOKENIZER.encode(prompt.content)) if isinstance(prompt.content, str) else 0
    assert str(raised.value) == f"the prompts cannot be used; nothing was run\n  {expected.format(tokens=tokens)}"
