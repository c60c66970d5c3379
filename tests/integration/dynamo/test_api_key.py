"""A server of two models with an API key: who gets answers, streams, large requests, and what stays public."""

from __future__ import annotations

import itertools
import json
import re
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from openai import APIStatusError, AuthenticationError, OpenAI

from tests.support import tiny_llm
from tests.support.dynamo import MODEL, TIMEOUT_S, ask, serving, wait_until
from trtkit import LLM, SamplingParams

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.conftest import Ran
    from tests.support.dynamo import Served

KEY = "a key of 23 characters!"


@pytest.fixture(scope="module")
def other_bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_llm.build(tmp_path_factory.mktemp("models"), "other")


@pytest.fixture(scope="module")
def guarded(chat_bundle: Path, other_bundle: Path) -> Iterator[Served]:
    with serving(chat_bundle, other_bundle, api_key=KEY) as running:
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


def test_requests_select_a_model_by_its_name(guarded: Served, local: LLM, other_bundle: Path) -> None:
    names = [MODEL, other_bundle.name]
    assert sorted(model.id for model in client(guarded).models.list()) == sorted(names)
    params = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)
    expected, prompts = {}, ["the quick brown", "a b c"]
    with LLM(other_bundle) as other:
        for name, llm in zip(names, (local, other), strict=True):
            expected[name] = [output.outputs[0].text for output in llm.generate(prompts, params)]
    assert expected[MODEL] != expected[other_bundle.name]
    for prompt, name in itertools.product(prompts, names * 3):
        settings = {"temperature": 0, "max_tokens": 12, "extra_body": {"ignore_eos": True}}
        answer = client(guarded).completions.create(model=name, prompt=prompt, **settings)
        assert (answer.model, answer.choices[0].text) == (name, expected[name][prompts.index(prompt)])
    with pytest.raises(APIStatusError, match="404"):
        client(guarded).completions.create(model="none", prompt="a")
    assert not [line for line in guarded.log if "request_span" in line]  # a line for each request would fill the log


@pytest.mark.parametrize(
    ("words", "code", "error"),
    [
        (["--name", "chat"], 2, "--name chat: with several models, write MODEL=VALUE; MODEL is one of"),
        (["--prefill-workers", "1"], 2, "--prefill-workers is for one model: serve it alone"),
        ([], 1, "two models are called `bundle`"),
    ],
)
def test_models_that_cannot_be_served_together_are_refused(
    chat_bundle: Path, trtkit: Callable[..., Ran], words: list[str], code: int, error: str
) -> None:
    ran = trtkit("serve", chat_bundle, chat_bundle, *words)
    assert (ran.code, error in ran.err) == (code, True)


def test_a_repository_is_served_alone(chat_bundle: Path, tmp_path: Path, trtkit: Callable[..., Ran]) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "model/config.pbtxt").touch()
    ran = trtkit("serve", tmp_path, chat_bundle)
    assert (ran.code, "which is served alone" in ran.err) == (2, True)


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
