"""`trtkit generate --replicas`: processes share a file of prompts; answers equal a single process's."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from trtkit.errors import RequestError
from trtkit.jobs.json_form import from_json
from trtkit.llm import AnswerFile, CompletionOutput, RequestMetrics, RequestOutput
from trtkit.llm.replicas import event_line, shares_of_replicas
from trtkit.llm.sampling.sampled import TokenLogprobs

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable

    from tests.conftest import Ran

    Run = Callable[..., Ran]
    Start = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def words(tiny_bundle: Path, workspace: Path) -> list[object]:
    """The command for thirty prompts of several kinds, some sampled."""
    lines: list[dict[str, Any]] = []
    for index in range(10):
        lines.append({"prompt": "the quick brown fox " * (1 + index % 3), "max_tokens": 4 + index})
        lines.append({"prompt_token_ids": [5 + index, 9, 33], "id": f"ids {index}"})
        lines.append({"prompt": "Rome", "temperature": 0.9, "seed": index, "n": 1 + index % 2})
    (workspace / "prompts.jsonl").write_text("\n".join(map(json.dumps, lines)))
    return ["generate", tiny_bundle, "--prompts", "prompts.jsonl", "--max-tokens", 12, "--system", "Be brief."]


def replicas_of(parent: int) -> list[int]:
    """Return the process ids of a process's replicas."""
    pids = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            is_child = f"\nPPid:\t{parent}\n" in (process / "status").read_text()
            if is_child and b"trtkit.llm.replica" in (process / "cmdline").read_bytes():
                pids.append(int(process.name))
        except OSError:
            continue
    return sorted(pids)


def is_running(pid: int) -> bool:
    try:
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False


def wait_for(condition: Callable[[], bool], seconds: float = 120) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.02)


@pytest.mark.children
def test_two_replicas_write_the_file_that_one_process_writes(words: list[object], workspace: Path, trtkit: Run) -> None:
    assert trtkit(*words, "--output", "one.jsonl", "-q").code == 0
    ran = trtkit(*words, "--output", "two.jsonl", "--replicas", 2, "--stats", "--json", "--cache-dir", "caches")
    assert ran.code == 0
    assert (workspace / "two.jsonl").read_bytes() == (workspace / "one.jsonl").read_bytes()
    answers = [json.loads(line) for line in (workspace / "two.jsonl").read_text().splitlines()]
    tokens = sum(len(output["token_ids"]) for line in answers for output in line.get("outputs", [line]))
    summary = ran.json()
    assert (summary["prompts"], summary["failed"], summary["output_tokens"]) == (30, 0, tokens)
    assert summary["prompt_tokens"] == sum(line["prompt_tokens"] for line in answers)
    assert "runtime: 2 replicas, each: " in ran.err
    assert "30 requests on 6 slots" in ran.err
    counts = ran.err.partition("answered by replicas: ")[2].partition(";")[0].split(" + ")
    assert sum(map(int, counts)) == 30
    assert min(map(int, counts)) > 0
    assert sorted(path.name for path in (workspace / "caches").iterdir()) == ["replica 1", "replica 2"]
    assert replicas_of(os.getpid()) == []


@pytest.mark.children
def test_answers_so_far_stay_if_a_replica_dies_and_the_next_run_resumes(
    words: list[object], workspace: Path, trtkit: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    add, count = AnswerFile.add, 0

    def add_then_kill(file: AnswerFile, index: int, answer: dict[str, Any]) -> None:
        nonlocal count
        add(file, index, answer)
        count += 1
        if count == 5:
            os.kill(replicas_of(os.getpid())[1], signal.SIGKILL)

    with monkeypatch.context() as patch:
        patch.setattr(AnswerFile, "add", add_then_kill)
        ran = trtkit(*words, "--output", "a.jsonl", "--replicas", 2, "-q")
    fix = "fix: use fewer replicas if memory ran out; with `--output`, the same command resumes\n"
    assert ran.code == 1
    assert ran.err in {f"error: --replicas: replica {n} of 2 has ended: signal SIGKILL\n{fix}" for n in (1, 2)}
    assert replicas_of(os.getpid()) == []
    written = (workspace / "a.jsonl").read_bytes().count(b"\n")
    assert 5 <= written < 30
    resumed = trtkit(*words, "--output", "a.jsonl", "--json", "-q")
    assert (resumed.code, resumed.json()["answered_before"]) == (0, written)
    assert trtkit(*words, "--output", "whole.jsonl", "-q").code == 0
    assert (workspace / "a.jsonl").read_bytes() == (workspace / "whole.jsonl").read_bytes()


@pytest.mark.children
@pytest.mark.parametrize(("sent", "code"), [(signal.SIGINT, 130), (signal.SIGKILL, -signal.SIGKILL)])
def test_replicas_end_with_the_command(
    words: list[object], start_trtkit: Start, sent: signal.Signals, code: int
) -> None:
    process = start_trtkit(*words, "--output", "a.jsonl", "--replicas", 2)
    pids: list[int] = []
    while len(pids) < 2:
        assert process.poll() is None
        pids = replicas_of(process.pid)
    assert all(map(is_running, pids))
    process.send_signal(sent)
    assert process.wait(60) == code
    wait_for(lambda: not any(map(is_running, pids)))


@pytest.mark.children
def test_prompts_are_checked_by_the_opened_network_before_anything_runs(
    words: list[object], workspace: Path, trtkit: Run
) -> None:
    lines = [{"prompt": "a"}, {"prompt": "b", "num_beams": 3}, {"prompt": "c"}, {"prompt": "d", "num_beams": 2}]
    (workspace / "prompts.jsonl").write_text("\n".join(map(json.dumps, lines)))
    alone = trtkit(*words, "--slots", 1, "--output", "a.jsonl", "-q")
    ran = trtkit(*words, "--slots", 1, "--output", "a.jsonl", "-q", "--replicas", 2)
    assert "prompts.jsonl:2: num_beams: 3 beams need 3 slots; the engine has 1" in ran.err
    assert "prompts.jsonl:4: num_beams: 2 beams need 2 slots; the engine has 1" in ran.err
    assert (ran.code, ran.out, ran.err) == (2, alone.out, alone.err)
    assert not (workspace / "a.jsonl").exists()


@pytest.mark.children
def test_a_replica_that_cannot_open_says_why(words: list[object], trtkit: Run) -> None:
    ran = trtkit(*words, "--replicas", 2, "-q", "--micro-batch", 1)
    assert (ran.code, ran.err) == (2, trtkit(*words, "-q", "--micro-batch", 1).err)
    assert ran.err.startswith("error: --micro-batch: ")


def test_replicas_without_a_file_and_without_enough_gpus_are_refused(
    words: list[object], tiny_bundle: Path, trtkit: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran = trtkit("generate", tiny_bundle, "a", "--replicas", 2)
    assert ran.code == 2
    assert "--replicas goes with --prompts FILE" in ran.err
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,5")
    ran = trtkit(*words, "--replicas", 3, "-q")
    what = "error: --replicas: 3 replicas need 3 GPUs; this machine has 2\n"
    assert (ran.code, ran.err) == (2, f"{what}fix: use at most 2, or use `--runtime reference`\n")


def test_each_replica_has_a_gpu_per_rank_or_a_share_of_the_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: set(range(12)))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1,2,3")
    assert shares_of_replicas(2, 2, "auto") == [{"CUDA_VISIBLE_DEVICES": "0,1"}, {"CUDA_VISIBLE_DEVICES": "2,3"}]
    assert shares_of_replicas(2, 3, "reference") == [{"OMP_NUM_THREADS": "2"}] * 2
    with pytest.raises(RequestError, match="2 replicas of 3 ranks need 6 GPUs; this machine has 4\nfix: leave it out"):
        shares_of_replicas(2, 3, "auto")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "-1")
    assert shares_of_replicas(3, 1, "auto") == [{"OMP_NUM_THREADS": "4"}] * 3
    for name, value in {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(RequestError, match="ranks that a launcher started belong to one replica"):
        shares_of_replicas(2, 2, "auto")


def test_an_output_arrives_as_it_was_sent() -> None:
    logprobs = (TokenLogprobs(3, -0.1, 1, ((3, -0.1), (4, float("-inf")))),)
    answer = CompletionOutput(0, "a\ud800é\n", (3, 7), "stop", 7, -0.1, logprobs)
    output = RequestOutput("4", None, (1, 2), (answer,), RequestMetrics(2, 2, 0.1, None, 0.3), logprobs)
    line = event_line(output)
    assert "\n" not in line
    assert from_json(RequestOutput, json.loads(line)["data"]) == output
