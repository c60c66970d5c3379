"""SmolLM2-135M-Instruct on a real tritonserver: concurrent answers equal those of `trtkit generate`."""

from __future__ import annotations

import contextlib
import http.client
import json
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest

from tests.support.served_llm import answers, generate, metric, stream, text, wait_until
from tests.support.triton import serving
from trtkit.builder.build import build_bundle
from trtkit.cli.main import main
from trtkit.config.load import load_config
from trtkit.jobs.runner import new_runner

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.conftest import Ran
    from tests.support.triton import Served

pytestmark = pytest.mark.slow
MODEL, SLOTS = "llama", 8
BUSY = "trtkit_slots_busy"
FP32 = ["precision=fp32"]  # in 16 bits, who shares a batch can turn a tie


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("smollm2") / "llama"
    return build_bundle(load_config("llama", FP32), out, new_runner()).bundle.path


@pytest.fixture(scope="module")
def served(bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    repository = tmp_path_factory.mktemp("models")
    main(["deploy", str(bundle), "--repository", str(repository), "-q"])
    with serving(repository) as server:
        yield server


@pytest.fixture(scope="module")
def generated(bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[list[str]], list[str]]:
    """What `trtkit generate` answers to prompts, 16 tokens each."""
    folder = tmp_path_factory.mktemp("prompts")

    def run(prompts: list[str]) -> list[str]:
        file, out = folder / "prompts.txt", folder / "out.jsonl"
        file.write_text("\n".join(prompts))
        words = ["--prompts", str(file), "--no-chat", "--max-tokens", "16", "--json", "-q"]
        with out.open("w") as lines, contextlib.redirect_stdout(lines), contextlib.suppress(SystemExit):
            main(["generate", str(bundle), *words])
        found = {each["prompt"]: each["text"] for each in map(json.loads, out.read_text().splitlines())}
        return [found[prompt] for prompt in prompts]

    return run


def test_sixteen_clients_get_what_generate_says(served: Served, generated: Callable[[list[str]], list[str]]) -> None:
    prompts = [f"The number {number} is" for number in range(16)]

    def over_grpc(prompt: str) -> str:
        return text(answers(served, MODEL, text_input=prompt, max_tokens=16, stream=True))

    with ThreadPoolExecutor(16) as pool:
        found = list(pool.map(over_grpc, prompts))
    assert found == generated(prompts)


def test_pieces_come_while_the_rest_is_made(served: Served) -> None:
    wait_until(served, BUSY, lambda slots: slots == 0)
    asked = {"text_input": "Gravity is", "max_tokens": 1500, "ignore_eos": True, "stream": True}
    with stream(served, MODEL, **asked) as following:
        pieces = [following() for _ in range(30)]
        assert metric(served, BUSY) == 1
    assert None not in pieces


def test_clients_that_go_free_their_slots(served: Served) -> None:
    wait_until(served, BUSY, lambda slots: slots == 0)
    asked = {"text_input": "Once upon a time", "max_tokens": 1500, "ignore_eos": True, "stream": True}
    with contextlib.ExitStack() as streams:
        for _ in range(SLOTS - 1):
            assert streams.enter_context(stream(served, MODEL, **asked))() is not None
        connection = http.client.HTTPConnection(served.http, timeout=60)
        connection.request("POST", f"/v2/models/{MODEL}/generate_stream", json.dumps(asked))
        response = connection.getresponse()
        assert response.read(6) == b"data: "
        wait_until(served, BUSY, lambda slots: slots == SLOTS)
        response.close()  # without a word: the client is gone
        connection.close()
        wait_until(served, BUSY, lambda slots: slots == SLOTS - 1)
    wait_until(served, BUSY, lambda slots: slots == 0)
    assert metric(served, "trtkit_generated_tokens_total") < 1500
    status, found = generate(served, MODEL, text_input="Gravity is", max_tokens=4)
    assert (status, found["text_output"]) == (200, " a fundamental concept in")


def test_json_follows_its_schema(served: Served) -> None:
    schema = {
        "type": "object",
        "properties": {"name": {"type": "string", "maxLength": 20}, "age": {"type": "integer", "maximum": 150}},
        "required": ["name", "age"],
        "additionalProperties": False,
    }
    guide = {"guided_decoding_guide_type": "json_schema", "guided_decoding_guide": json.dumps(schema)}
    messages = json.dumps([{"role": "user", "content": "A person, as JSON."}])
    status, found = generate(served, MODEL, messages=messages, max_tokens=64, **guide)
    assert status == 200
    person = json.loads(found["text_output"])
    assert set(person) == {"name", "age"}
    assert person["age"] <= 150


def test_check_says_that_the_server_answers_as_the_bundle(
    served: Served, bundle: Path, trtkit: Callable[..., Ran]
) -> None:
    ran = trtkit("check", f"grpc://{served.grpc}", "--bundle", bundle)
    assert ran.code == 0, ran.out + ran.err
    assert "answered as the bundle does" in ran.out
