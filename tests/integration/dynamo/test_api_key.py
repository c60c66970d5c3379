"""A server with a key: OpenAI's client, streams and large requests through the gate, and what stays open."""

from __future__ import annotations

import json
import re
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from openai import APIStatusError, AuthenticationError, OpenAI

from tests.support.dynamo import MODEL, TIMEOUT_S, ask, serving, wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.dynamo import Served

KEY = "a key of 23 characters!"


@pytest.fixture(scope="module")
def guarded(chat_bundle: Path) -> Iterator[Served]:
    with serving(chat_bundle, api_key=KEY) as running:
        yield running


def client(served: Served, key: str = KEY) -> OpenAI:
    return OpenAI(base_url=served.fleet.options.url, api_key=key, timeout=TIMEOUT_S, max_retries=0)


def test_answers_and_streams_are_for_who_has_the_key(guarded: Served) -> None:
    settings = {"model": MODEL, "prompt": "the quick", "max_tokens": 6, "temperature": 0}
    answer = client(guarded).completions.create(**settings).choices[0].text
    pieces = client(guarded).completions.create(**settings, stream=True)
    assert "".join(piece.choices[0].text for piece in pieces) == answer
    for key in ("none", KEY[:-1]):
        with pytest.raises(AuthenticationError, match="API key"):
            client(guarded, key).completions.create(**settings)


def test_probes_and_metrics_stay_open(guarded: Served) -> None:
    root = guarded.fleet.options.url.removesuffix("/v1")
    assert [ask(urllib.request.Request(f"{root}/{path}"))[0] for path in ("health", "live", "metrics")] == [200] * 3
    status, text = ask(urllib.request.Request(f"{root}/v1/models"))
    assert (status, json.loads(text)["error"]["code"]) == (401, "invalid_api_key")


def test_a_large_request_is_refused(guarded: Served) -> None:
    with pytest.raises(APIStatusError) as caught:
        client(guarded).completions.create(model=MODEL, prompt="x" * (5 << 20))
    assert caught.value.status_code == 413


def test_a_client_that_disconnects_frees_its_slot(guarded: Served) -> None:
    stream = client(guarded).completions.create(
        model=MODEL, prompt="the", max_tokens=90, stream=True, extra_body={"ignore_eos": True}
    )
    next(iter(stream))
    stream.close()
    wait_until(lambda: guarded.busy_slots(0) == 0)


def test_no_process_has_the_key(guarded: Served) -> None:
    pids = [guarded.fleet.frontend_pid, *(member.process.pid for member in guarded.fleet.workers)]
    for pid in pids:
        texts = [Path(f"/proc/{pid}/{name}").read_bytes() for name in ("environ", "cmdline")]
        assert not any(re.search(re.escape(KEY).encode(), text) for text in texts)
