"""Two workers, each replaced once: what happens when workers die, and what strangers can send."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import random
import signal
import socket
import string
import threading
import time
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from openai import APIError, APIStatusError

from tests.integration.dynamo.test_openai import answers, complete
from tests.support.dynamo import MODEL, Served, wait_until
from trtkit.deployment.dynamo.kubernetes import QUEUE_METRIC
from trtkit.deployment.triton.endpoints import listens

if TYPE_CHECKING:
    from collections.abc import Callable

    from openai import OpenAI

    from trtkit import LLM


@pytest.fixture(scope="module", autouse=True)
def watched(served: Served) -> None:
    """The thread that starts workers again; `trtkit serve` watches in its own."""
    threading.Thread(target=served.fleet.watch, daemon=True).start()


def post(served: Served, body: bytes, path: str = "completions") -> tuple[int, bytes]:
    request = urllib.request.Request(f"{served.fleet.options.url}/{path}", body, {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=120) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        return error.code, error.read()


def kill_worker(served: Served, number: int) -> None:
    """Kill a worker and wait until another is in its place."""
    killed = served.fleet.workers[number].process.pid
    os.kill(killed, signal.SIGKILL)
    wait_until(lambda: served.fleet.workers[number].process.pid != killed)
    wait_until(lambda: served.fleet.workers[number].is_started and served.known_workers() == 2)


def running(served: Served, client: OpenAI, **settings: Any) -> tuple[Any, str, int]:
    """Return a stream that goes on, its first text, and the worker that is busy with it."""
    for _ in range(20):  # until its end has not come before the workers have said which one is busy
        stream = complete(client, "a", stream=True, **settings)
        text = next(iter(stream)).choices[0].text
        if busy := [index for index in range(2) if served.busy_slots(index)]:
            break
    assert len(busy) == 1
    return stream, text, busy[0]


def test_an_answer_goes_on_when_its_worker_dies(served: Served, client: OpenAI, local: LLM) -> None:
    settings: Any = {"max_tokens": 80, "temperature": 0.0, "extra_body": {"ignore_eos": True}}
    (wanted,) = answers(local, "a", max_tokens=80, temperature=0.0, ignore_eos=True)
    stream, text, busy = running(served, client, **settings)
    kill_worker(served, busy)
    assert text + "".join(piece.choices[0].text for piece in stream if piece.choices) == wanted.text
    assert any("it is started again" in line for line in served.log)


def test_a_guided_answer_fails_when_its_worker_dies(served: Served, client: OpenAI) -> None:
    """Dynamo's frontend moves no guided request, as docs/openai.md says."""
    stream, _, busy = running(served, client, max_tokens=80, extra_body={"guided_regex": "[a-z]{300}"})
    kill_worker(served, busy)
    with pytest.raises(APIError, match="temporarily unavailable"):
        list(stream)


@pytest.fixture(params=["process", pytest.param("engine", marks=pytest.mark.slow)])
def hang(request: pytest.FixtureRequest) -> Callable[[int], None]:
    """What makes a worker hang: all of it stops, or only the thread of its engine."""
    return stop_process if request.param == "process" else stop_busiest_thread


def stop_process(pid: int) -> None:
    os.kill(pid, signal.SIGSTOP)


def stop_busiest_thread(pid: int) -> None:
    """Stop the thread that computes, as a debugger does, until it is killed."""
    threads = {each: ticks for each, ticks in cpu_ticks(pid).items() if each != pid}
    thread = max(threads, key=lambda each: threads[each])
    threading.Thread(target=hold, args=(thread,), daemon=True).start()


def cpu_ticks(pid: int) -> dict[int, int]:
    """Return the processor time that each thread of a process has taken."""
    stats = {int(each.name): (each / "stat").read_text() for each in Path(f"/proc/{pid}/task").iterdir()}
    fields = {thread: text.rpartition(")")[2].split() for thread, text in stats.items()}
    return {thread: int(each[11]) + int(each[12]) for thread, each in fields.items()}


def hold(thread: int) -> None:
    attach, wall = 16, 0x4000_0000
    assert ctypes.CDLL(None, use_errno=True).ptrace(attach, thread, None, None) == 0, ctypes.get_errno()
    os.waitpid(thread, wall)  # it has stopped
    os.waitpid(thread, wall)  # it was killed


def test_answers_go_on_when_a_worker_hangs(
    served: Served, client: OpenAI, local: LLM, hang: Callable[[int], None]
) -> None:
    (wanted,) = answers(local, "b", max_tokens=80, temperature=0.0, ignore_eos=True)
    hung, logged = served.fleet.workers[0].process.pid, len(served.log)
    for member in served.fleet.workers:
        member.failures.clear()  # other tests' kills: a worker that fails three times within a minute stays down

    def ask(_index: int) -> str:
        text: str = complete(client, "b", max_tokens=80, temperature=0, extra_body={"ignore_eos": True}).choices[0].text
        return text

    with ThreadPoolExecutor(32) as pool:
        texts = [pool.submit(ask, index) for index in range(64)]
        wait_until(lambda: served.busy_slots(0) > 0)
        hang(hung)
        assert {each.result() for each in texts} == {wanted.text}
    wait_until(lambda: served.fleet.workers[0].process.pid != hung and served.fleet.workers[0].is_started)
    assert any("hung for 8 s (--hang-timeout); it is started again" in line for line in served.log[logged:])


@pytest.mark.parametrize(
    ("count", "kills"), [(120, {40: 1}), pytest.param(1000, {150: 1, 300: 0, 450: 1, 600: 0}, marks=pytest.mark.slow)]
)
def test_cancels_and_killed_workers_lose_and_change_nothing(
    served: Served, client: OpenAI, local: LLM, count: int, kills: dict[int, int]
) -> None:
    """Every answer that comes is right, greedy or seeded, every request ends, no slot stays taken."""
    choose = random.Random(5)
    seeded = {"temperature": 0.8, "seed": 3}
    cases = [(f"{choose.choice('abc')} {choose.randrange(4)}", choose.random() < 0.3) for _ in range(count)]
    wanted = {
        case: answers(local, case[0], **(seeded if case[1] else {"temperature": 0.0}))[0].text for case in set(cases)
    }
    cancelled = {index for index in range(count) if choose.random() < 0.15}
    has_killed = []
    one_at_once = threading.Lock()
    for member in served.fleet.workers:
        member.failures.clear()

    def ask(index: int) -> str:
        prompt, is_seeded = cases[index]
        settings: Any = seeded if is_seeded else {"temperature": 0}
        if index in kills:
            with one_at_once:
                kill_worker(served, kills[index])
                has_killed.append(index)
        if index not in cancelled:
            return str(complete(client, prompt, **settings).choices[0].text)
        stream = complete(client, prompt, stream=True, **settings)
        for _, _piece in zip(range(index % 5), stream, strict=False):
            pass
        stream.close()
        return wanted[cases[index]]

    with ThreadPoolExecutor(12) as pool:
        assert list(pool.map(ask, range(count))) == [wanted[case] for case in cases]
    assert has_killed == list(kills)
    wait_until(lambda: served.metric("slots_busy") == 0 and served.metric("requests_waiting") == 0)


def test_every_port_is_on_the_loopback_address(served: Served) -> None:
    """The processes' sockets, as the kernel lists them."""
    fleet = served.fleet
    assert fleet.frontend_pid is not None
    assert listens(fleet.frontend_pid, fleet.options.port)
    own = set()
    for pid in (fleet.frontend_pid, *(member.process.pid for member in fleet.workers)):
        for name in Path(f"/proc/{pid}/fd").iterdir():
            own.add(name.readlink().name if name.exists() else "")
    lines = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    addresses = {line[1].partition(":")[0] for line in lines if line[3] == "0A" and f"socket:[{line[9]}]" in own}
    assert addresses == {"0100007F"}
    assert not [
        line for line in Path("/proc/net/tcp6").read_text().splitlines()[1:] if f"socket:[{line.split()[9]}]" in own
    ]


def test_kubernetes_finds_what_its_manifests_ask_for(served: Served) -> None:
    root = served.fleet.options.url.removesuffix("/v1")
    for path in ("/health", "/live"):
        assert urllib.request.urlopen(f"{root}{path}", timeout=60).status == 200
    assert QUEUE_METRIC in urllib.request.urlopen(f"{root}/metrics", timeout=60).read().decode()


def test_large_requests_are_refused(served: Served, client: OpenAI, local: LLM) -> None:
    """With 413, which a client that is still sending may not get to read."""
    with (
        contextlib.suppress(ConnectionError),
        socket.create_connection(("127.0.0.1", served.fleet.options.port)) as large,
    ):
        head = ["POST /v1/completions HTTP/1.1", "Host: a", "Content-Type: application/json"]
        large.sendall("\r\n".join([*head, "Content-Length: 10000000", "", "x" * 10_000_000]).encode())
        assert large.recv(64).startswith(b"HTTP/1.1 413")
    assert complete(client, "a", temperature=0).choices[0].text == answers(local, "a", temperature=0.0)[0].text


EXPLODES = {"type": "integer", "allOf": [{"multipleOf": 999_983}, {"multipleOf": 999_979}]}
COUNTS = [f"(a{{{count}}}){{1000}}" for count in range(500, 520)]


@pytest.mark.parametrize(
    ("name", "guides", "reason"),
    [
        ("guided_json", [EXPLODES], b""),
        ("guided_json", [{"$ref": "#"}], b"leads only to itself"),
        ("guided_grammar", ["root ::= root"], b"leads only to itself"),
        ("guided_regex", COUNTS, b"too many expressions"),
    ],
)
def test_guides_that_explode_are_refused(
    served: Served, client: OpenAI, local: LLM, name: str, guides: list[Any], reason: bytes
) -> None:
    workers = [worker.process.pid for worker in served.fleet.workers]
    before = [resident_mib(pid) for pid in workers]
    wanted, longest_s = answers(local, "a", temperature=0.0)[0].text, 0.0
    with ThreadPoolExecutor(4) as pool:
        bodies = [json.dumps({"model": MODEL, "prompt": "a", name: guide}).encode() for guide in guides]
        sent = [pool.submit(post, served, body) for body in bodies]
        while not all(each.done() for each in sent) or not longest_s:
            start = time.monotonic()
            assert complete(client, "a", temperature=0).choices[0].text == wanted
            longest_s = max(longest_s, time.monotonic() - start)
    for status, body in (each.result() for each in sent):
        assert status == 400
        assert name.encode() in body
        assert reason in body
    assert longest_s < 10  # on a busy machine, both of them
    assert all(resident_mib(pid) - size < 300 for pid, size in zip(workers, before, strict=True))


def resident_mib(pid: int) -> float:
    pages = int(Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


@pytest.mark.parametrize("count", [300, pytest.param(5000, marks=pytest.mark.slow)])
def test_malformed_requests_are_refused_and_hurt_nobody(served: Served, client: OpenAI, local: LLM, count: int) -> None:
    choose = random.Random(11)
    fields = ["prompt", "temperature", "n", "stop", "logit_bias", "seed", "max_tokens", "guided_json", "stop_token_ids"]
    fields += ["response_format", "logprobs", "stream", "top_k", "min_p", "min_tokens", "ignore_eos", "echo"]
    values: list[Any] = [None, -1, 2**70, 1e308, "", "x" * 9999, [], [[]], {}, {"a": {"b": []}}, True, [None], -0.5]
    (wanted,) = answers(local, "a", temperature=0.0)

    def send(_index: int) -> int:
        body: Any = {"model": MODEL, "prompt": "a", "max_tokens": 2}
        body |= {choose.choice(fields): choose.choice(values) for _ in range(choose.randrange(1, 4))}
        data = json.dumps(body).encode()
        if choose.random() < 0.2:
            cut = choose.randrange(len(data))
            data = data[:cut] + choose.choice(string.punctuation).encode() * choose.randrange(3) + data[cut + 1 :]
        status, _ = post(served, data, choose.choice(["completions", "chat/completions"]))
        return status

    with ThreadPoolExecutor(4) as pool:
        statuses = list(pool.map(send, range(count)))
    assert set(statuses) <= {200, 400, 404, 422}  # 404: a letter of the model's name was hit
    assert statuses.count(400) + statuses.count(422) > count // 3
    assert complete(client, "a", temperature=0).choices[0].text == wanted.text
    wait_until(lambda: served.metric("slots_busy") == 0)


def test_clients_that_break_off_leave_no_request(served: Served, client: OpenAI) -> None:
    body = json.dumps({"model": MODEL, "prompt": "a", "max_tokens": 80, "ignore_eos": True, "stream": True})
    for _ in range(8):
        with socket.create_connection(("127.0.0.1", served.fleet.options.port)) as connection:
            head = ["POST /v1/completions HTTP/1.1", "Host: a", "Content-Type: application/json"]
            connection.sendall("\r\n".join([*head, f"Content-Length: {len(body)}", "", body]).encode())
            assert connection.recv(16).startswith(b"HTTP/1.1 200")
    wait_until(lambda: served.metric("slots_busy") == 0)


def test_more_than_the_queue_takes_is_503(client: OpenAI) -> None:
    """Three of 30 answers run at a worker and 27 wait; 30 more are too many for a queue of 40."""

    def ask(_index: int) -> int:
        try:
            complete(client, "a", max_tokens=40, n=30, extra_body={"ignore_eos": True})
        except APIStatusError as error:
            return error.status_code
        return 200

    with ThreadPoolExecutor(6) as pool:
        assert set(pool.map(ask, range(6))) == {200, 503}
