"""What a fleet's ports allow clients of the frontend, holders of the token, and everybody else."""

from __future__ import annotations

import json
import re
import secrets
import time
import urllib.request
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING

import pytest
import zmq

from tests.support.docs import exported_metrics, queried_metrics
from tests.support.dynamo import MODEL, OK, ask, wait_until
from trtkit.deployment.dynamo.model_folder import read_model
from trtkit.errors import GenerationError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from openai import OpenAI

    from tests.support.dynamo import Served

OPENAI = Path(__file__).parents[3] / "docs" / "openai-production.md"
ADAPTER = {"lora_name": MODEL, "source": {"uri": "file:///tmp"}}


def answer(client: OpenAI, prompt: str = "the quick") -> str:
    return client.completions.create(model=MODEL, prompt=prompt, max_tokens=6, temperature=0).choices[0].text


def test_the_docs_name_every_route_and_none_of_them_is_for_operators(served: Served, client: OpenAI) -> None:
    root = served.fleet.options.url.removesuffix("/v1")
    routes = json.loads(ask(urllib.request.Request(f"{root}/openapi.json"))[1])["paths"]
    table = OPENAI.read_text().partition("## What listens where")[2]
    assert set(routes) == set(re.findall(r"`(/[^` ]+)`", table.partition("The worker's own port")[0]))
    before = answer(client)
    headers = {"Content-Type": "application/json"}
    body = {"model": MODEL, "active_decode_blocks_threshold": 0.0, "active_prefill_tokens_threshold": 0}
    posted = {path: json.dumps(body).encode() for path, methods in routes.items() if "post" in methods}
    for path, data in {**posted, "/busy_threshold": json.dumps(body).encode()}.items():
        status = ask(urllib.request.Request(root + path, data, headers))[0]
        assert 400 <= status < 500 or path == "/v1/responses/input_tokens", path
    assert [answer(client) for _ in range(3)] == [before] * 3


def test_forged_events_at_the_broker_change_no_answer(served: Served, client: OpenAI) -> None:
    """Any process of this machine can tell the router what workers hold; the worker alone knows what it has cached."""
    publish, subscribe = broker_addresses(served)
    assert [address.rpartition(":")[0] for address in (publish, subscribe)] == ["tcp://127.0.0.1"] * 2
    prompts = [f"{word} the quick brown fox jumps over the lazy dog" for word in ("a", "one", "my")]
    want = [answer(client, prompt) for prompt in prompts]
    with zmq.Context() as context, context.socket(zmq.SUB) as listener, context.socket(zmq.PUB) as stranger:
        listener.subscribe(b"")
        listener.connect(subscribe)
        stranger.connect(publish)
        wait_until(lambda: has_news(client, listener))
        events = [listener.recv_multipart() for _ in range(1) if listener.poll(1000)]
        while listener.poll(1000):
            events.append(listener.recv_multipart())
        assert events
        time.sleep(1)  # until the stranger is connected
        random = Random(0)
        for _ in range(20):
            for frames in events:
                for forged in forgeries(frames, random):
                    stranger.send_multipart(forged)
        stranger.send_multipart([*events[0][:-1], bytes(64 << 20)])
        wait_until(lambda: any("Dropping malformed ZMQ message" in line for line in served.log))
        for _ in range(3):
            assert [answer(client, prompt) for prompt in prompts] == want
        assert [member.process.exit_code() for member in served.fleet.workers] == [None, None]
        assert served.known_workers() == 2


def broker_addresses(served: Served) -> list[str]:
    """Return where workers publish and where the router listens."""
    assert served.fleet._broker is not None
    return re.findall(r"tcp://[\d.]+:\d+", served.fleet._broker.environment["DYN_ZMQ_BROKER_URL"])


def has_news(client: OpenAI, listener: zmq.Socket[bytes]) -> bool:
    """Whether workers have published something about a prompt that they have not seen before."""
    answer(client, secrets.token_hex(40))
    return bool(listener.poll(1000))


def forgeries(frames: list[bytes], random: Random) -> Iterator[list[bytes]]:
    """Yield an event again, and other things in its form: cut, with changed bytes, empty, without a part."""
    last = frames[-1]
    yield frames
    yield [*frames[:-1], last[: random.randrange(len(last) + 1)]]
    changed = bytearray(last)
    for _ in range(random.randrange(1, 9)):
        changed[random.randrange(len(last))] = random.randrange(256)
    yield [*frames[:-1], bytes(changed)]
    for frame in range(len(frames)):
        yield [random.randbytes(len(each)) if number == frame else each for number, each in enumerate(frames)]
        yield [b"" if number == frame else each for number, each in enumerate(frames)]
        yield [each for number, each in enumerate(frames) if number != frame] or [b""]


@pytest.mark.parametrize("token", [None, "", "wrong", 1, "\u00e4"])
def test_nobody_changes_a_worker_without_its_token(served: Served, client: OpenAI, token: object) -> None:
    before = answer(client)
    body = {} if token is None else {"token": token}
    for name, more in (("sleep", {}), ("wake_up", {}), ("load_lora", ADAPTER), ("unload_lora", ADAPTER)):
        status, text = served.ask_worker(0, f"engine/update/{name}", {**body, **more}, Origin="https://example.com")
        assert (status, "`token` is missing or wrong" in text) == (500, True)
    for path in ("engine/update/sleep", "engine/control/sleep", "engine/control/wake_up"):
        assert served.ask_worker(0, path)[0] != 200
    assert (served.metric("asleep"), served.known_workers()) == (0, 2)
    assert answer(client) == before


def test_an_adapter_cannot_take_the_models_name(served: Served, client: OpenAI) -> None:
    before = answer(client)
    for name in ("load_lora", "unload_lora"):
        assert f"`{MODEL}` is the name of the model" in served.update(0, name, **ADAPTER)
    assert [answer(client) for _ in range(4)] == [before] * 4


def test_sleeping_twice_is_no_error(served: Served, client: OpenAI) -> None:
    before = answer(client)
    for name in ("sleep", "sleep", "wake_up", "wake_up"):
        assert served.update(0, name) == OK
    wait_until(lambda: served.known_workers() == 2)
    assert [answer(client) for _ in range(3)] == [before] * 3


def test_no_module_of_the_current_folder_runs(served: Served, hostile_folder: Path) -> None:
    assert served.fleet.workers
    assert [path.name for path in hostile_folder.iterdir() if path.suffix != ".py"] == []


def test_refused_requests_leave_no_lines_in_the_log(served: Served) -> None:
    count, url = len(served.log), f"{served.fleet.options.url}/completions"
    for body in ({"model": "other"}, {"temperature": -5}, {"best_of": 4}, {"prompt": None}, {"x" * 1000: 1}):
        data = json.dumps({"model": MODEL, "prompt": "a", "max_tokens": 1, **body}).encode()
        assert 400 <= ask(urllib.request.Request(url, data, {"Content-Type": "application/json"}))[0] < 500
    errors = [line for line in served.log[count:] if "ERROR http-request" in line]
    assert errors == [], errors[0]


def test_a_chat_template_that_takes_too_much_is_refused_before_anything_starts(
    chat_bundle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(folder: Path) -> None:
        raise GenerationError("the chat template takes too much", str(folder))

    monkeypatch.setattr("trtkit.deployment.dynamo.model_folder.try_template", refuse)
    with pytest.raises(GenerationError, match="the chat template takes too much"):
        read_model(chat_bundle)


def test_the_board_queries_what_the_frontend_exports(served: Served, client: OpenAI) -> None:
    answer(client)
    metrics = ask(urllib.request.Request(f"{served.fleet.options.url.removesuffix('/v1')}/metrics"))[1]
    queried = queried_metrics(0)
    assert len(queried) > 5
    assert queried - exported_metrics(metrics) == set()
