"""`trtkit generate` on a tiny model: what it prints, what it refuses, how it ends."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
from typing import TYPE_CHECKING, Any

import pytest
import torch

from tests.conftest import TRTKIT
from tests.models import classifier, save
from tests.tiny_chat import LENGTH

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.conftest import Ran
    from trtkit.runtime.text import Tokenizer

    Run = Callable[..., Ran]


def lines(ran: Ran) -> list[Any]:
    return [json.loads(line) for line in ran.out.splitlines()]


def write(path: Path, *objects: Any) -> Path:
    path.write_text("\n".join(one if isinstance(one, str) else json.dumps(one) for one in objects))
    return path


def test_one_prompt_prints_its_text_and_nothing_else(
    tiny_bundle: Path, tiny_tokenizer: Tokenizer, greedy: Any, trtkit: Run
) -> None:
    ran = trtkit("generate", tiny_bundle, "--no-chat", "--prompt", "Gravity is", "--max-tokens", 12)
    assert ran.code == 0, ran.err
    assert ran.out == tiny_tokenizer.decode(greedy(tiny_tokenizer.encode("Gravity is"), 12)) + "\n"
    assert ran.err.startswith(f"opening {tiny_bundle}\nruntime: reference executor on the tensorrt_rtx ")


def test_json_lines_are_answered_as_transformers_does(
    tiny_bundle: Path, tiny_tokenizer: Tokenizer, greedy: Any, tmp_path: Path, trtkit: Run
) -> None:
    user = {"role": "user", "content": "Rome?"}
    asked = [
        {"prompt": "Paris?", "id": "p"},
        {"messages": [user]},
        {"prompt_token_ids": [5, 6, 7], "max_tokens": 5},
        {"prompt": "Paris?", "id": "s", "temperature": 0.9, "seed": 4},
    ]
    ids = [tiny_tokenizer.chat([{**user, "content": "Paris?"}]), tiny_tokenizer.chat([user]), [5, 6, 7]]
    file = write(tmp_path / "p.jsonl", *asked)
    ran = trtkit("generate", tiny_bundle, "--prompts", file, "--json", "--max-tokens", 8, "--slots", 2, "-q")
    assert (ran.code, ran.err) == (0, "")
    found = {line["id"]: line for line in lines(ran)}
    assert found.keys() == {"p", 1, 2, "s"}
    for name, prompt, count in zip(["p", 1, 2], ids, [8, 8, 5], strict=True):
        assert found[name]["token_ids"] == greedy(prompt, count)
        assert found[name]["metrics"]["prompt_tokens"] == len(prompt)
        assert found[name]["metrics"]["ttft_ms"] > 0
    assert (found["p"]["prompt"], found[1]["messages"], found[2]["prompt_token_ids"]) == ("Paris?", [user], [5, 6, 7])
    assert found["s"]["token_ids"] != found["p"]["token_ids"]
    again = trtkit("generate", tiny_bundle, "--prompt", "Paris?", "--temperature", 0.9, "--seed", 4, "--json", "-q")
    assert lines(again)[0]["token_ids"][:8] == found["s"]["token_ids"]


def test_several_prompts_print_each_below_its_first_line(tiny_bundle: Path, trtkit: Run) -> None:
    words = ["generate", tiny_bundle, "--choice", "yes", "--choice", "no", "-q"]
    one = trtkit(*words, "--prompt", "Rome?").out
    ran = trtkit(*words, "--prompt", "Rome?\nParis?", "--prompt", "Rome?")
    assert ran.code == 0
    first, blank, second = ran.out.partition("\n\n")
    assert blank
    assert first.startswith("> Rome?\n")
    assert second == f"> Rome?\n{one}"


def test_several_answers_are_numbered(tiny_bundle: Path, trtkit: Run) -> None:
    words = ["generate", tiny_bundle, "--prompt", "Rome?", "--num-beams", 3, "--num-return-sequences", 2, "-q"]
    ran = trtkit(*words, "--regex", "[ab]{3}")
    assert ran.code == 0
    assert [line[:4] for line in ran.out.splitlines()] == ["> Ro", "[1] ", "[2] "]
    (found,) = lines(trtkit(*words, "--max-tokens", 4, "--json"))
    assert len(found["outputs"]) == 2
    assert found["outputs"][0]["token_ids"] == found["token_ids"]
    assert found["outputs"][0]["cumulative_logprob"] >= found["outputs"][1]["cumulative_logprob"]


def test_logprobs_name_their_tokens(tiny_bundle: Path, tiny_tokenizer: Tokenizer, trtkit: Run) -> None:
    words = ["--no-chat", "--prompt", "Gravity is", "--max-tokens", 3, "--json", "-q"]
    (found,) = lines(trtkit("generate", tiny_bundle, *words, "--logprobs", 2, "--prompt-logprobs", 1))
    assert [place["token"] for place in found["logprobs"]] == found["token_ids"]
    for place in found["logprobs"]:
        assert place["top"][0] == {name: place[name] for name in ("token", "text", "logprob")}
        assert len(place["top"]) == 2
        assert place["rank"] == 1
    assert [place["token"] for place in found["prompt_logprobs"]] == tiny_tokenizer.encode("Gravity is")[1:]
    assert found["cumulative_logprob"] == pytest.approx(sum(place["logprob"] for place in found["logprobs"]))


def test_guided_answers_follow_their_schema(tiny_bundle: Path, tmp_path: Path, trtkit: Run) -> None:
    schema = write(tmp_path / "schema.json", {"type": "boolean"})
    ran = trtkit("generate", tiny_bundle, "--prompt", "JSON", "--json-schema", schema, "-q")
    assert ran.code == 0
    assert isinstance(json.loads(ran.out), bool)


def test_a_stop_string_ends_the_text(tiny_bundle: Path, trtkit: Run) -> None:
    words = ["generate", tiny_bundle, "--prompt", "a", "--regex", "xyz{0,9}!", "--bad-words", "!", "-q"]
    assert trtkit(*words, "--stop-strings", "yz").out == "x\n"
    assert trtkit(*words, "--stop-strings", "yz", "--include-stop").out == "xyz\n"


def test_stats_tell_times_reuse_and_acceptance(tiny_bundle: Path, trtkit: Run) -> None:
    words = ["generate", tiny_bundle, "--prompt", "Rome?", "--stats", "-q", "--max-tokens", 20, "--ignore-eos"]
    one = trtkit(*words, "--draft", tiny_bundle)
    parts = [part.split(" ")[0] for part in one.err.strip().split("; ")]
    assert parts[:3] == ["20", "TTFT", "TPOT"]
    assert one.err.endswith(" draft tokens accepted (100%)\n")
    many = trtkit(*words, "--prompt", "Rome?")
    assert many.err.startswith("2 requests on 3 slots in ")
    assert "40 tokens" in many.err
    assert "from cache" in many.err


@pytest.mark.parametrize("speculation", [["--lookup", 3], ["--prefill-budget", 5], ["--slots", 1]])
def test_how_it_is_run_changes_no_token(tiny_bundle: Path, speculation: list[Any], trtkit: Run) -> None:
    words = ["generate", tiny_bundle, "--prompt", "a a a a a", "--max-tokens", 40, "-q"]
    assert trtkit(*words).out == trtkit(*words, *speculation).out


def test_a_request_that_fails_leaves_the_others_alone(tiny_bundle: Path, tmp_path: Path, trtkit: Run) -> None:
    dead = {"prompt": "a", "id": "dead", "guided_choice": ["yes"], "bad_words": ["yes"]}
    file = write(tmp_path / "p.jsonl", dead, {"prompt": "a", "id": "well", "guided_choice": ["yes"]})
    ran = trtkit("generate", tiny_bundle, "--prompts", file, "--json", "-q")
    assert ran.code == 1
    found = {line["id"]: line for line in lines(ran)}
    reason = "no token is left: `bad_words` and `guided_choice` bar every one"
    assert (found["dead"]["finish_reason"], found["dead"]["error"]) == ("error", reason)
    assert (found["well"]["text"], found["well"]["finish_reason"]) == ("yes", "stop")
    assert ran.err == f"error: {file}:1: {reason}\n"


def test_bad_lines_are_told_before_anything_runs(tiny_bundle: Path, workspace: Path, refuses: Any) -> None:
    write(
        workspace / "p.jsonl",
        {"prompt": "a"},
        "{",
        {"prompt": "a", "tempratur": 1},
        {"prompt": "a " * LENGTH},
        {"prompt": "a", "eos_token_id": "<|end|>"},
    )
    said = refuses("generate", tiny_bundle, "--prompts", "p.jsonl", code=2)
    assert said == (
        "the prompts cannot be used; nothing was run\n"
        "  p.jsonl:2: invalid JSON: Expecting property name enclosed in double quotes: line 1 column 2 (char 1)\n"
        '    fix: write one object a line: {"prompt": "Gravity is"}; plain lines need a name that ends in .txt\n'
        "  p.jsonl:3: tempratur: unknown setting\n"
        "    fix: did you mean `temperature`?\n"
        f"  p.jsonl:4: the prompt has 114 tokens; a slot holds {LENGTH}\n"
        "    fix: shorten it, or build with a larger `llm.max_sequence_length`\n"
        "  p.jsonl:5: eos_token_id: `<|end|>` is not one token of this model\n"
        "    fix: did you mean `<|im_end|>`?"
    )


@pytest.mark.parametrize(
    ("words", "code", "expected"),
    [
        (
            ["--slots", 0],
            2,
            "--slots: 0 slots asked, the engine has 1 to 3\nfix: use 1 to 3, or build with a larger `llm.",
        ),
        (["--slots", 4], 2, "--slots: 4 slots asked, the engine has 1 to 3\n"),
        (["--lookup", 2, "--draft", "x"], 2, "--lookup, --draft: both `draft` and `lookup` are given\nfix: choose one"),
        (["--prefill-budget", 0], 2, "--prefill-budget: a budget of 0 tokens a step computes nothing"),
        (["--runtime", "tensorrt"], 1, "no GPU to run the engine\nfix: use `--runtime reference`"),
        (
            ["--num-beams", 4],
            2,
            "the prompts cannot be used; nothing was run\n  prompt 0: num_beams: 4 beams need as many slots",
        ),
        (
            ["--num-beams", 2, "--temperature", 0.5],
            2,
            "the options cannot be used\n"
            "  --temperature: `0.5` with `num_beams=2`: beam search draws nothing\n"
            "    fix: leave out `temperature`, or `num_beams`",
        ),
        (["--eos-token-id", "<|end|>"], 2, "the options cannot be used\n  --eos-token-id: `<|end|>` is not one token"),
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
    assert ran.err.endswith("Error: nothing to answer: give TEXT or --prompts FILE\n")


def test_texts_stand_after_the_bundle(tiny_bundle: Path, trtkit: Run) -> None:
    by_option = trtkit("generate", tiny_bundle, "--prompt", "a", "--prompt", "b", "--max-new-tokens", 3, "-q")
    assert by_option.code == 0
    assert trtkit("generate", tiny_bundle, "a", "b", "--max-tokens", 3, "-q").out == by_option.out


@pytest.mark.parametrize("command", [["generate", "--prompt", "a"], ["chat"], ["eval", "--perplexity", "t.txt"]])
def test_only_language_models_are_taken(command: list[str], workspace: Path, trtkit: Run, refuses: Any) -> None:
    assert refuses(command[0], "nowhere", *command[1:]) == (
        "nowhere: not a bundle: `manifest.json` is missing\nfix: give a folder that `trtkit build` wrote"
    )
    save(classifier(batch=1), workspace / "m.onnx")
    (workspace / "m.yaml").write_text("source: {onnx: m.onnx}\n")
    assert trtkit("build", "m.yaml").code == 0
    assert refuses(command[0], "bundles/m", *command[1:]) == (
        "bundles/m: the bundle does not hold a language model\nfix: give a bundle that was built from an `llm` config"
    )


def test_an_error_is_json_where_json_was_asked(tiny_bundle: Path, trtkit: Run) -> None:
    ran = trtkit("generate", tiny_bundle, "--prompt", "", "--json")
    assert ran.code == 2
    assert ran.json()["problems"] == [{"what": "the prompt is empty", "where": "--prompt", "fix": ""}]


def test_a_reader_that_leaves_early_is_no_fault(tiny_bundle: Path, tmp_path: Path) -> None:
    file = write(tmp_path / "p.jsonl", *({"prompt": "a", "max_tokens": 1 + index} for index in range(8)))
    words = [*TRTKIT, "generate", str(tiny_bundle), "--prompts", str(file), "--json", "-q", "--ignore-eos"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert json.loads(process.stdout.readline())["token_ids"]
        process.stdout.close()
        assert process.wait(60) == 1
        assert process.stderr.read() == ""


def test_ctrl_c_ends_a_stream_and_keeps_its_text(tiny_bundle: Path, start_trtkit: Any) -> None:
    words = ["generate", tiny_bundle, "--prompt", "a", "--max-tokens", 75, "--regex", "[ab]{70,}"]
    process = start_trtkit(*words, "-q")
    first = process.stdout.read(3)
    process.send_signal(signal.SIGINT)
    rest, err = process.communicate(timeout=60)
    assert set(first + rest) <= {"a", "b", "\n"}
    if process.returncode != 0:  # it may have been done already
        assert (process.returncode, err) == (130, "\ncancelled\n")


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
