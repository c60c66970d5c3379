"""`trtkit generate` on a tiny model: output, refusals, exit."""

from __future__ import annotations

import json
import signal
import subprocess
from typing import TYPE_CHECKING, Any

import pytest

from tests.conftest import TRTKIT

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


def test_texts_stand_after_the_bundle(tiny_bundle: Path, trtkit: Run) -> None:
    by_option = trtkit("generate", tiny_bundle, "--prompt", "a", "--prompt", "b", "--max-new-tokens", 3, "-q")
    assert by_option.code == 0
    assert trtkit("generate", tiny_bundle, "a", "b", "--max-tokens", 3, "-q").out == by_option.out


def test_a_reader_that_leaves_early_is_no_fault(tiny_bundle: Path, tmp_path: Path) -> None:
    file = write(tmp_path / "p.jsonl", *({"prompt": "a", "max_tokens": 1 + index} for index in range(8)))
    words = [*TRTKIT, "generate", str(tiny_bundle), "--prompts", str(file), "--json", "-q", "--ignore-eos"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert json.loads(process.stdout.readline())["token_ids"]
        process.stdout.close()
        assert process.wait(120) == 128 + signal.SIGPIPE
        assert process.stderr.read() == ""


def test_ctrl_c_ends_a_stream_and_keeps_its_text(tiny_bundle: Path, start_trtkit: Any) -> None:
    words = ["generate", tiny_bundle, "--prompt", "a", "--max-tokens", 75, "--regex", "[ab]{70,}"]
    process = start_trtkit(*words, "-q")
    first = process.stdout.read(3)
    process.send_signal(signal.SIGINT)
    rest, err = process.communicate(timeout=120)
    assert set(first + rest) <= {"a", "b", "\n"}
    if process.returncode != 0:  # it may have been done already
        assert (process.returncode, err) == (130, "\ncancelled\n")
