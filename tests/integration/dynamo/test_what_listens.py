"""What a fleet's ports do for whom: clients of the frontend, whoever knows the token, and nobody else."""

from __future__ import annotations

import json
import re
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.dynamo import MODEL, OK, ask, wait_until
from trtkit.deployment.dynamo.model_folder import read_model
from trtkit.errors import GenerationError

if TYPE_CHECKING:
    from openai import OpenAI

    from tests.dynamo import Served

OPENAI = Path(__file__).parents[3] / "docs" / "openai.md"
ADAPTER = {"lora_name": MODEL, "source": {"uri": "file:///tmp"}}


def answer(client: OpenAI) -> str:
    return client.completions.create(model=MODEL, prompt="the quick", max_tokens=6, temperature=0).choices[0].text


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
