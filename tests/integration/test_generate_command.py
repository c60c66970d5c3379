"""`trtkit generate`, `chat` and `eval` on a tiny model: what they print, what they refuse, how they end."""

from __future__ import annotations

import io
import json
import math
import signal
import subprocess
from typing import TYPE_CHECKING, Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from tests.conftest import TRTKIT
from tests.models import classifier, save
from tests.tiny_chat import LENGTH, build
from trtkit.runtime.text import Tokenizer, open_tokenizer

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.conftest import Ran

    Run = Callable[..., Ran]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the model as transformers saves it, and its bundle."""
    path = tmp_path_factory.mktemp("tiny")
    build(path)
    return path


@pytest.fixture
def bundle(folder: Path) -> Path:
    return folder / "bundle"


@pytest.fixture
def tokenizer(folder: Path) -> Tokenizer:
    found = open_tokenizer(folder / "bundle/model")
    assert found is not None
    return found


@pytest.fixture
def greedy(folder: Path) -> Callable[[list[int], int], list[int]]:
    """transformers' greedy answer, its end token included."""
    hf = AutoModelForCausalLM.from_pretrained(folder / "model", dtype=torch.float32)

    def generate(ids: list[int], count: int) -> list[int]:
        every = {"attention_mask": torch.ones(1, len(ids)), "pad_token_id": 0}  # 0 is a token of the prompt too
        found = hf.generate(torch.tensor([ids]), max_new_tokens=count, do_sample=False, **every)
        return [int(token) for token in found[0, len(ids) :]]

    return generate


def lines(ran: Ran) -> list[Any]:
    return [json.loads(line) for line in ran.out.splitlines()]


def write(path: Path, *objects: Any) -> Path:
    path.write_text("\n".join(one if isinstance(one, str) else json.dumps(one) for one in objects))
    return path


def test_one_prompt_prints_its_text_and_nothing_else(
    bundle: Path, tokenizer: Tokenizer, greedy: Any, trtkit: Run
) -> None:
    ran = trtkit("generate", bundle, "--no-chat", "--prompt", "Gravity is", "--max-new-tokens", 12)
    assert ran.code == 0, ran.err
    assert ran.out == tokenizer.decode(greedy(tokenizer.encode("Gravity is"), 12)) + "\n"
    assert ran.err.startswith(f"opening {bundle}\nruntime: reference executor on the tensorrt_rtx ")


def test_json_lines_are_answered_as_transformers_does(
    bundle: Path, tokenizer: Tokenizer, greedy: Any, tmp_path: Path, trtkit: Run
) -> None:
    user = {"role": "user", "content": "Rome?"}
    asked = [
        {"prompt": "Paris?", "id": "p"},
        {"messages": [user]},
        {"prompt_token_ids": [5, 6, 7], "max_tokens": 5},
        {"prompt": "Paris?", "id": "s", "temperature": 0.9, "seed": 4},
    ]
    ids = [tokenizer.chat([{**user, "content": "Paris?"}]), tokenizer.chat([user]), [5, 6, 7]]
    file = write(tmp_path / "p.jsonl", *asked)
    ran = trtkit("generate", bundle, "--prompts", file, "--json", "--max-new-tokens", 8, "--slots", 2, "-q")
    assert (ran.code, ran.err) == (0, "")
    found = {line["id"]: line for line in lines(ran)}
    assert found.keys() == {"p", 1, 2, "s"}
    for name, prompt, count in zip(["p", 1, 2], ids, [8, 8, 5], strict=True):
        assert found[name]["token_ids"] == greedy(prompt, count)
        assert found[name]["metrics"]["prompt_tokens"] == len(prompt)
        assert found[name]["metrics"]["ttft_ms"] > 0
    assert (found["p"]["prompt"], found[1]["messages"], found[2]["prompt_token_ids"]) == ("Paris?", [user], [5, 6, 7])
    assert found["s"]["token_ids"] != found["p"]["token_ids"]
    again = trtkit("generate", bundle, "--prompt", "Paris?", "--temperature", 0.9, "--seed", 4, "--json", "-q")
    assert lines(again)[0]["token_ids"][:8] == found["s"]["token_ids"]


def test_several_prompts_print_each_below_its_first_line(bundle: Path, trtkit: Run) -> None:
    words = ["generate", bundle, "--choice", "yes", "--choice", "no", "-q"]
    one = trtkit(*words, "--prompt", "Rome?").out
    ran = trtkit(*words, "--prompt", "Rome?\nParis?", "--prompt", "Rome?")
    assert ran.code == 0
    first, blank, second = ran.out.partition("\n\n")
    assert blank
    assert first.startswith("> Rome?\n")
    assert second == f"> Rome?\n{one}"


def test_several_answers_are_numbered(bundle: Path, trtkit: Run) -> None:
    words = ["generate", bundle, "--prompt", "Rome?", "--num-beams", 3, "--num-return-sequences", 2, "-q"]
    ran = trtkit(*words, "--regex", "[ab]{3}")
    assert ran.code == 0
    assert [line[:4] for line in ran.out.splitlines()] == ["> Ro", "[1] ", "[2] "]
    (found,) = lines(trtkit(*words, "--max-new-tokens", 4, "--json"))
    assert len(found["outputs"]) == 2
    assert found["outputs"][0]["token_ids"] == found["token_ids"]
    assert found["outputs"][0]["cumulative_logprob"] >= found["outputs"][1]["cumulative_logprob"]


def test_logprobs_name_their_tokens(bundle: Path, tokenizer: Tokenizer, trtkit: Run) -> None:
    words = ["--no-chat", "--prompt", "Gravity is", "--max-new-tokens", 3, "--json", "-q"]
    (found,) = lines(trtkit("generate", bundle, *words, "--logprobs", 2, "--prompt-logprobs", 1))
    assert [place["token"] for place in found["logprobs"]] == found["token_ids"]
    for place in found["logprobs"]:
        assert place["top"][0] == {name: place[name] for name in ("token", "text", "logprob")}
        assert len(place["top"]) == 2
        assert place["rank"] == 1
    assert [place["token"] for place in found["prompt_logprobs"]] == tokenizer.encode("Gravity is")[1:]
    assert found["cumulative_logprob"] == pytest.approx(sum(place["logprob"] for place in found["logprobs"]))


def test_guided_answers_follow_their_schema(bundle: Path, tmp_path: Path, trtkit: Run) -> None:
    schema = write(tmp_path / "schema.json", {"type": "boolean"})
    ran = trtkit("generate", bundle, "--prompt", "JSON", "--json-schema", schema, "-q")
    assert ran.code == 0
    assert isinstance(json.loads(ran.out), bool)


def test_a_stop_string_ends_the_text(bundle: Path, trtkit: Run) -> None:
    words = ["generate", bundle, "--prompt", "a", "--regex", "xyz{0,9}!", "--bad-words", "!", "-q"]
    assert trtkit(*words, "--stop-strings", "yz").out == "x\n"
    assert trtkit(*words, "--stop-strings", "yz", "--include-stop").out == "xyz\n"


def test_stats_tell_times_reuse_and_acceptance(bundle: Path, trtkit: Run) -> None:
    words = ["generate", bundle, "--prompt", "Rome?", "--stats", "-q", "--max-new-tokens", 20, "--ignore-eos"]
    one = trtkit(*words, "--draft", bundle)
    parts = [part.split(" ")[0] for part in one.err.strip().split("; ")]
    assert parts[:3] == ["20", "TTFT", "TPOT"]
    assert one.err.endswith(" drafted tokens accepted (100%)\n")
    many = trtkit(*words, "--prompt", "Rome?")
    assert many.err.startswith("2 requests on 3 slots in ")
    assert "40 tokens" in many.err
    assert "reused" in many.err


@pytest.mark.parametrize("speculation", [["--lookup", 3], ["--prefill-budget", 5], ["--slots", 1]])
def test_how_it_is_run_changes_no_token(bundle: Path, speculation: list[Any], trtkit: Run) -> None:
    words = ["generate", bundle, "--prompt", "a a a a a", "--max-new-tokens", 40, "-q"]
    assert trtkit(*words).out == trtkit(*words, *speculation).out


def test_a_request_that_fails_leaves_the_others_alone(bundle: Path, tmp_path: Path, trtkit: Run) -> None:
    dead = {"prompt": "a", "id": "dead", "guided_choice": ["yes"], "bad_words": ["yes"]}
    file = write(tmp_path / "p.jsonl", dead, {"prompt": "a", "id": "well", "guided_choice": ["yes"]})
    ran = trtkit("generate", bundle, "--prompts", file, "--json", "-q")
    assert ran.code == 1
    found = {line["id"]: line for line in lines(ran)}
    reason = "no token is left: `bad_words` and `guided_choice` bar every one"
    assert (found["dead"]["finish_reason"], found["dead"]["error"]) == ("error", reason)
    assert (found["well"]["text"], found["well"]["finish_reason"]) == ("yes", "stop")
    assert ran.err == f"error: {file}:1: {reason}\n"


def test_bad_lines_are_told_before_anything_runs(bundle: Path, workspace: Path, refuses: Any) -> None:
    write(
        workspace / "p.jsonl",
        {"prompt": "a"},
        "{",
        {"prompt": "a", "tempratur": 1},
        {"prompt": "a " * LENGTH},
        {"prompt": "a", "eos_token_id": "<|end|>"},
    )
    said = refuses("generate", bundle, "--prompts", "p.jsonl", code=2)
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
        (["--runtime", "tensorrt"], 1, "no GPU is here to run the engine\nfix: use `--runtime reference`"),
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
    words: list[Any], code: int, expected: str, bundle: Path, refuses: Callable[..., str]
) -> None:
    if words[0] == "--runtime" and torch.cuda.is_available():
        pytest.skip("a GPU is here")
    assert refuses("generate", bundle, "--prompt", "a", *words, code=code).startswith(expected)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ([], "Error: nothing to answer: give --prompt TEXT or --prompts FILE\n"),
        (
            ["--prompt", "a", "--no-chat", "--system", "b"],
            "Error: --system needs the chat template: leave out --no-chat\n",
        ),
        (["--prompt", "a", "--logprobs", "1"], "Error: --logprobs is shown in JSON only: add --json\n"),
        (["--prompt", "a", "--top-k", "x"], "Error: Invalid value for '--top-k': 'x' is not a valid integer.\n"),
    ],
)
def test_options_that_do_not_go_together_are_wrong_usage(words: list[str], expected: str, trtkit: Run) -> None:
    ran = trtkit("generate", "bundles/m", *words)
    assert (ran.code, ran.out) == (2, "")
    assert ran.err.endswith(expected)


@pytest.mark.parametrize("command", [["generate", "--prompt", "a"], ["chat"], ["eval", "--perplexity", "t.txt"]])
def test_only_language_models_are_taken(command: list[str], workspace: Path, trtkit: Run, refuses: Any) -> None:
    assert refuses(command[0], "nowhere", *command[1:]) == (
        "nowhere: no bundle here: `manifest.json` is missing\nfix: give a folder that `trtkit build` made"
    )
    save(classifier(batch=1), workspace / "m.onnx")
    (workspace / "m.yaml").write_text("source: {onnx: m.onnx}\n")
    assert trtkit("build", "--config", "m.yaml").code == 0
    assert refuses(command[0], "bundles/m", *command[1:]) == (
        "bundles/m: the bundle holds no language model\nfix: give a bundle that was built from an `llm` config"
    )


def test_an_error_is_json_where_json_was_asked(bundle: Path, trtkit: Run) -> None:
    ran = trtkit("generate", bundle, "--prompt", "", "--json")
    assert ran.code == 2
    assert ran.json()["problems"] == [{"what": "the prompt is empty", "where": "--prompt", "fix": ""}]


def test_a_reader_that_leaves_early_is_no_fault(bundle: Path, tmp_path: Path) -> None:
    file = write(tmp_path / "p.jsonl", *({"prompt": "a", "max_tokens": 1 + index} for index in range(8)))
    words = [*TRTKIT, "generate", str(bundle), "--prompts", str(file), "--json", "-q", "--ignore-eos"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert json.loads(process.stdout.readline())["token_ids"]
        process.stdout.close()
        assert process.wait(60) == 1
        assert process.stderr.read() == ""


def test_ctrl_c_ends_a_stream_and_keeps_its_text(bundle: Path, start_trtkit: Any) -> None:
    words = ["generate", bundle, "--prompt", "a", "--max-new-tokens", 75, "--regex", "[ab]{70,}"]
    process = start_trtkit(*words, "-q")
    first = process.stdout.read(3)
    process.send_signal(signal.SIGINT)
    rest, err = process.communicate(timeout=60)
    assert set(first + rest) <= {"a", "b", "\n"}
    if process.returncode != 0:  # it may have been done already
        assert (process.returncode, err) == (130, "\ncancelled\n")


def chat(trtkit: Run, monkeypatch: pytest.MonkeyPatch, said: str, *words: Any) -> Ran:
    monkeypatch.setattr("sys.stdin", io.StringIO(said))
    return trtkit("chat", *words)


def test_a_conversation_remembers_what_was_said(
    bundle: Path, tokenizer: Tokenizer, greedy: Any, monkeypatch: pytest.MonkeyPatch, trtkit: Run
) -> None:
    messages: list[dict[str, str]] = []
    expected = []
    for text in ("a", "b"):
        messages.append({"role": "user", "content": text})
        answer = tokenizer.decode(greedy(tokenizer.chat(messages), 4))
        messages.append({"role": "assistant", "content": answer})
        expected.append(answer)
    ran = chat(trtkit, monkeypatch, "a\n\nb\n/reset\na\n/exit\nb\n", bundle, "--max-new-tokens", 4, "-q", "--stats")
    assert ran.code == 0
    assert ran.out == f"{expected[0]}\n{expected[1]}\n{expected[0]}\n"
    reused = [int(line.rpartition("tokens, ")[2].split(" ")[0]) for line in ran.err.splitlines() if "reused" in line]
    assert reused[1] > 16
    assert "the conversation is forgotten" in ran.err


def test_a_conversation_that_fills_the_cache_says_how_to_go_on(
    bundle: Path, monkeypatch: pytest.MonkeyPatch, trtkit: Run
) -> None:
    said = f"{'a ' * LENGTH}\n/stats\n/what\n/system b\n/help\na\n"
    ran = chat(trtkit, monkeypatch, said, bundle, "-q", "--choice", "yes")
    assert (ran.code, ran.out) == (0, "yes\n")
    assert ran.err.startswith(
        f"error: the conversation has 114 tokens with this line; a slot holds {LENGTH}\n"
        "fix: /reset begins a new one; or say it shorter\n"
        "nothing was answered yet\n"
        "error: unknown command `/what`\nfix: /help shows the commands\n"
        "the system message is set; the conversation is forgotten\n"
        "/reset        forget the conversation\n"
    )
    long = chat(trtkit, monkeypatch, "a\n", bundle, "-q", "--max-new-tokens", 200, "--ignore-eos")
    assert long.err == f"(the cache is full, {LENGTH} tokens; /reset begins a new conversation)\n"


def test_perplexity_is_that_of_transformers(
    folder: Path, bundle: Path, tokenizer: Tokenizer, workspace: Path, trtkit: Run
) -> None:
    text = "Gravity is a fundamental concept. " * 20
    (workspace / "t.txt").write_text(text)
    ids = tokenizer.encode(text)
    hf = AutoModelForCausalLM.from_pretrained(folder / "model", dtype=torch.float32)
    windows = [torch.tensor([ids[start : start + 40]]) for start in (0, 40, 80)]
    with torch.inference_mode():
        losses = [float(hf(window, labels=window).loss) for window in windows]
    ran = trtkit("eval", bundle, "--perplexity", "t.txt", "--windows", 3, "--window-tokens", 40, "--json")
    assert ran.code == 0, ran.err
    found = ran.json()
    assert found["perplexity"] == pytest.approx(math.exp(sum(losses) / 3), rel=1e-5)
    assert (found["windows"], found["window_tokens"], found["tokens"]) == (3, 40, 120)
    assert found["tokens_per_second"] > 0
    assert "reference executor" in found["runtime"]
    shown = trtkit("eval", bundle, "--perplexity", "t.txt", "--windows", 3, "--window-tokens", 40, "-q")
    assert f"perplexity  {found['perplexity']:.4f}" in shown.out
    same = trtkit("eval", bundle, "--compare", bundle, "--perplexity", "t.txt", "--window-tokens", 40, "-q")
    assert "+0.00%, 0.0000 nats a token" in same.out
    assert "same next token  100.0%" in same.out
    everything = trtkit("eval", bundle, "--perplexity", "t.txt", "--windows", 0, "--window-tokens", 40, "--json")
    assert everything.json()["windows"] == len(ids) // 40


def test_a_text_that_cannot_be_read_is_refused(bundle: Path, workspace: Path, refuses: Callable[..., str]) -> None:
    assert refuses("eval", bundle, "--perplexity", "no.txt") == (
        "no.txt: the text cannot be read: No such file or directory\nfix: give a UTF-8 text file"
    )
    (workspace / "t.txt").write_text("a")
    assert refuses("eval", bundle, "--perplexity", "t.txt") == (
        "t.txt: the text has 1 tokens, two are the least\nfix: give a longer text"
    )
