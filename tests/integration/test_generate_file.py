"""`trtkit generate --output`: answers in a file, the same whether or not a run was killed and resumed."""

from __future__ import annotations

import json
import random
import signal
import time
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable
    from pathlib import Path

    from tests.conftest import Ran

    Run = Callable[..., Ran]
    Start = Callable[..., subprocess.Popen[str]]

WORDS = ["Rome", "Paris", "fox", "dog", "the quick brown", "do not go"]


@pytest.fixture
def prompts(workspace: Path) -> Path:
    """Forty prompts of different lengths, every third sampled, some with other limits."""
    chance = random.Random(0)
    lines = []
    for index in range(40):
        line: dict[str, Any] = {"prompt": " ".join(chance.choices(WORDS, k=1 + index % 6)), "id": f"p{index}"}
        line |= {"temperature": 0.9, "seed": index} if index % 3 == 0 else {}
        line |= {"max_tokens": 3 + index % 7} if index % 4 == 0 else {}
        lines.append(json.dumps(line))
    path = workspace / "prompts.jsonl"
    path.write_text("\n".join(lines))
    return path


@pytest.fixture
def words(tiny_bundle: Path, prompts: Path) -> list[object]:
    return ["generate", tiny_bundle, "--prompts", prompts, "--max-tokens", 12, "-q", "--no-chat"]


def read(path: Path) -> list[Any]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_answers_are_those_of_stdout_in_the_order_of_the_prompts(
    words: list[object], workspace: Path, trtkit: Run
) -> None:
    printed = {line["id"]: line for line in map(json.loads, trtkit(*words, "--json").out.splitlines())}
    ran = trtkit(*words, "--output", "answers.jsonl", "--json")
    assert (ran.code, ran.err) == (0, "")
    answers = read(workspace / "answers.jsonl")
    assert [line["index"] for line in answers] == list(range(40))
    for line in answers:
        expected = printed[line["id"]]
        assert {name: line[name] for name in ("prompt", "text", "token_ids", "finish_reason")} == {
            name: expected[name] for name in ("prompt", "text", "token_ids", "finish_reason")
        }
        assert line["prompt_tokens"] == expected["metrics"]["prompt_tokens"]
        assert "metrics" not in line
    summary = ran.json()
    assert summary["output_tokens"] == sum(len(line["token_ids"]) for line in answers)
    assert (summary["prompts"], summary["answered_before"], summary["failed"]) == (40, 0, 0)
    assert sorted(path.name for path in workspace.glob("*answers*")) == ["answers.jsonl", "answers.jsonl.run"]


def test_a_repeated_command_computes_nothing(words: list[object], workspace: Path, trtkit: Run) -> None:
    assert trtkit(*words, "--output", "a.jsonl").code == 0
    before = (workspace / "a.jsonl").read_bytes()
    ran = trtkit(*words, "--output", "a.jsonl", "--json")
    assert (ran.code, ran.json()["answered_before"], ran.json()["output_tokens"]) == (0, 40, 0)
    assert (workspace / "a.jsonl").read_bytes() == before


@pytest.mark.children
def test_killed_runs_end_with_the_bytes_of_one_that_was_not(
    words: list[object], workspace: Path, trtkit: Run, start_trtkit: Start
) -> None:
    assert trtkit(*words, "--output", "whole.jsonl").code == 0
    expected, killed = (workspace / "whole.jsonl").read_bytes(), workspace / "killed.jsonl"
    chance, counts = random.Random(time.time_ns()), []
    for most in (3, 25):  # of answers, at which the process dies
        process = start_trtkit(*words, "--output", killed)
        while process.poll() is None and (not killed.exists() or killed.read_bytes().count(b"\n") < most):
            time.sleep(0.001)
        time.sleep(chance.uniform(0, 0.02))
        process.send_signal(signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL
        counts.append(killed.read_bytes().count(b"\n"))
    assert counts == sorted(counts)
    assert counts[0] > 0
    ran = trtkit(*words, "--output", killed, "--json")
    assert (ran.code, ran.json()["answered_before"]) == (0, counts[-1])
    assert killed.read_bytes() == expected


@pytest.mark.parametrize("seed", range(4))
def test_a_torn_line_is_cut_off(words: list[object], workspace: Path, trtkit: Run, seed: int) -> None:
    whole, torn = workspace / "whole.jsonl", workspace / "torn.jsonl"
    if not whole.exists():
        assert trtkit(*words, "--output", whole).code == 0
    lines = whole.read_bytes().splitlines(keepends=True)
    chance = random.Random(seed)
    kept = b"".join(chance.sample(lines, 30))
    torn.write_bytes(kept[: chance.randrange(len(kept))])
    (workspace / "torn.jsonl.run").write_bytes((workspace / "whole.jsonl.run").read_bytes())
    complete = torn.read_bytes().count(b"\n")
    ran = trtkit(*words, "--output", torn, "--json")
    assert (ran.code, ran.json()["answered_before"]) == (0, complete)
    assert torn.read_bytes() == whole.read_bytes()


def test_what_was_changed_is_refused_by_name(words: list[object], workspace: Path, prompts: Path, trtkit: Run) -> None:
    assert trtkit(*words, "--output", "a.jsonl").code == 0
    before = (workspace / "a.jsonl").read_bytes()
    fix = "fix: choose another `--output`, or replace these answers with `--restart`\n"
    ran = trtkit(*words, "--output", "a.jsonl", "--top-k", 5, "--max-tokens", 3)
    what = "error: a.jsonl: holds answers of an earlier run that differs in: `--max-tokens`, `--top-k`\n"
    assert (ran.code, ran.err) == (2, what + fix)
    assert trtkit(*words, "--output", "a.jsonl", "--slots", 1).code == 0
    prompts.write_text(prompts.read_text().replace("Rome", "Oslo", 1))
    ran = trtkit(*words, "--output", "a.jsonl")
    assert ran.err == f"error: a.jsonl: holds answers of an earlier run that differs in: the prompts\n{fix}"
    assert (workspace / "a.jsonl").read_bytes() == before
    assert trtkit(*words, "--output", "a.jsonl", "--restart").code == 0
    assert "Oslo" in (workspace / "a.jsonl").read_text()


def test_a_file_of_something_else_is_left_alone(words: list[object], workspace: Path, trtkit: Run) -> None:
    fix = "fix: choose another `--output`, or replace these answers with `--restart`\n"
    (workspace / "a.jsonl").write_text("mine\n")
    ran = trtkit(*words, "--output", "a.jsonl")
    assert (ran.code, ran.err) == (2, f"error: a.jsonl: exists, but `a.jsonl.run` is missing or damaged\n{fix}")
    assert (workspace / "a.jsonl").read_text() == "mine\n"
    assert trtkit(*words, "--output", "b.jsonl").code == 0
    lines = (workspace / "b.jsonl").read_text().splitlines(keepends=True)
    (workspace / "b.jsonl").write_text("".join([*lines[:3], lines[1]]))  # an answer twice
    assert trtkit(*words, "--output", "b.jsonl").err == f"error: b.jsonl:4: not an answer of this run\n{fix}"
    ran = trtkit(*words, "--output", workspace)
    assert (ran.code, ran.err) == (
        2,
        f"error: {workspace}: is not a file\nfix: choose another `--output`\n",
    )


def test_bad_input_writes_nothing(tiny_bundle: Path, workspace: Path, trtkit: Run) -> None:
    (workspace / "bad.jsonl").write_text('{"prompt": "a"}\n{"prompt": 7}\n{"prompt": "b", "temperature": -1}\n')
    ran = trtkit("generate", tiny_bundle, "--prompts", "bad.jsonl", "--output", "a.jsonl", "-q")
    assert ran.code == 2
    assert "bad.jsonl:2" in ran.err
    assert "bad.jsonl:3" in ran.err
    words = ["generate", tiny_bundle, "a", "-q", "--output", "a.jsonl"]
    assert trtkit(*words, "--runtime", "tensorrt").code == 1  # no GPU: nothing was answered
    assert sorted(path.name for path in workspace.iterdir()) == ["bad.jsonl"]
    assert "no such folder" in trtkit("generate", tiny_bundle, "a", "--output", "none/a.jsonl").err
    assert "--restart goes with --output" in trtkit("generate", tiny_bundle, "a", "--restart").err
    (workspace / "asked.txt").write_text("a\n")
    both = ("--prompts", workspace / "asked.txt", "--output", workspace / "asked.txt", "--restart")
    assert "--output and --prompts are the same file" in trtkit("generate", tiny_bundle, *both).err
    assert (workspace / "asked.txt").read_text() == "a\n"


def test_an_answer_that_fails_is_kept_and_told(tiny_bundle: Path, workspace: Path, trtkit: Run) -> None:
    lines = ['{"prompt": "a", "guided_regex": "xyz", "bad_words": ["y"]}', '{"prompt": "b", "max_tokens": 3}']
    (workspace / "p.jsonl").write_text("\n".join(lines))
    words = ["generate", tiny_bundle, "--prompts", "p.jsonl", "--output", "a.jsonl", "--json"]
    for _ in range(2):  # computed, and answers in the file
        ran = trtkit(*words)
        assert (ran.code, ran.json()["failed"]) == (1, 1)
    assert [line["finish_reason"] for line in read(workspace / "a.jsonl")] == ["error", "length"]


@pytest.mark.children
def test_one_process_writes_at_a_time(words: list[object], workspace: Path, trtkit: Run, start_trtkit: Start) -> None:
    process = start_trtkit(*words, "--output", "a.jsonl")
    while not (workspace / "a.jsonl").exists() or not (workspace / "a.jsonl").stat().st_size:
        assert process.poll() is None
        time.sleep(0.001)
    process.send_signal(signal.SIGSTOP)
    ran = trtkit(*words, "--output", "a.jsonl")
    process.send_signal(signal.SIGCONT)
    fix = "fix: wait for it, or choose another `--output`\n"
    assert (ran.code, ran.err) == (1, f"error: a.jsonl: another process is writing these answers\n{fix}")
    assert process.wait() == 0
    assert len(read(workspace / "a.jsonl")) == 40
