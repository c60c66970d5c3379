"""A language model on a real tritonserver refuses invalid and excessive requests, and frees abandoned slots."""

from __future__ import annotations

import contextlib
import json
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest
from tritonclient.utils import InferenceServerException

from tests.support.served_llm import MODEL, PROMPT, answers, generate, metric, stream, text, wait_until
from tests.support.triton import serving
from trtkit import SamplingParams
from trtkit.cli.main import main
from trtkit.errors import DeployError

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.triton import Served
    from trtkit import LLM


GENERATED = "trtkit_generated_tokens_total"
FAILING = """

class Failing(TritonPythonModel):
    def initialize(self, args):
        super().initialize(args)

        def step():
            raise ValueError("the GPU is gone")

        self._engine.frontend.step = step


TritonPythonModel = Failing
"""


@pytest.mark.parametrize(
    ("inputs", "said"),
    [
        ({"temperature": -1.0}, "temperature: `-1.0` is not a finite number"),
        ({"top_p": 1.5}, "top_p: `1.5` is not"),
        ({"beam_width": 0}, "beam_width: `0` is not"),
        ({"max_tokens": 0}, "max_tokens: `0` is not"),
        ({"temperatur": 0.5}, "temperatur: unknown input\nfix: did you mean `temperature`?"),
        ({"text_input": None}, "got 0"),
        ({"input_ids": [1, 2]}, "text_input and input_ids: give exactly one of"),
        ({"text_input": None, "input_ids": [1, 100_000]}, "100000"),
        (
            {"text_input": None, "input_ids": [1, 2], "input_lengths": -1},
            "input_lengths: `-1` is not from 1 to the 2 of",
        ),
        ({"text_input": None, "messages": "hello"}, "messages: is not JSON"),
        ({"max_tokens": 4, "request_output_len": 5}, "request_output_len: given twice"),
        ({"guided_decoding_guide_type": "poem"}, "guided_decoding_guide_type: unknown guide type `poem`"),
        ({"guided_decoding_guide": "x"}, "guided_decoding_guide_type: is missing"),
        ({"embedding_bias_words": ["a"]}, "embedding_bias_words: 1 words and 0 weights"),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else "",
)
def test_a_wrong_request_is_the_clients_fault(served: Served, inputs: dict[str, Any], said: str) -> None:
    asked = {
        name: value for name, value in {"text_input": PROMPT, "max_tokens": 4, **inputs}.items() if value is not None
    }
    status, found = generate(served, MODEL, **asked)
    assert status == 400, found
    assert said in found["error"]
    assert generate(served, MODEL, text_input=PROMPT, max_tokens=2)[0] == 200


@pytest.mark.parametrize(
    ("inputs", "reason"),
    [
        (
            {"num_return_sequences": 2147483647, "top_k": 5},
            "num_return_sequences: `2147483647` is above the limit, 1024",
        ),
        ({"num_return_sequences": 9, "top_k": 5}, "num_return_sequences: `9` answers exceed the queue's limit, 8"),
        ({"beam_width": 2147483647}, "beam_width: `2147483647` is above the limit, 1024"),
        ({"beam_width": 4}, "beam_width: 4 beams need 4 slots; the engine has 3"),
        ({"beam_width": 2, "length_penalty": 1e30}, "length_penalty: `1e+30` is above the limit, 5"),
        ({"bad_words": ["x"] * 1025}, "bad_words: 1025 words are more than the limit, 1024"),
        ({"bad_words": ["x" * 5000]}, "bad_words: a word of 5000 bytes; the limit is 4096"),
        ({"stop_words": ["x"] * 65}, "stop_words: 65 texts are more than the limit, 64"),
        ({"embedding_bias_words": ["x"] * 1025}, "embedding_bias_words: 1025 words are more than the limit, 1024"),
        ({"text_input": "x" * 65_537}, "the prompt has 65537 characters; at most 65536 are read"),
        ({"text_input": None, "input_ids": [1] * 97}, "the prompt has 97 tokens; a slot holds 96"),
        (
            {"guided_decoding_guide_type": "ebnf_grammar", "guided_decoding_guide": "#" * 16_385},
            "guided_decoding_guide: 16385 characters are more than the limit, 16384",
        ),
        (
            {"guided_decoding_guide_type": "json_schema", "guided_decoding_guide": '{"multipleOf": 999983}'},
            "guided_decoding_guide: `multipleOf` with a least common multiple of 999983 is above the limit, 10000",
        ),
        (
            {
                "guided_decoding_guide_type": "json_schema",
                "guided_decoding_guide": '{"items":' * 5000 + "1" + "}" * 5000,
            },
            "guided_decoding_guide: the schema is nested too deeply",
        ),
        ({"text_input": None, "messages": "[" * 50_000}, "messages: is not JSON"),
        (
            {"text_input": None, "messages": '[{"content": [{"type": "image", "path": "/etc/passwd"}]}]'},
            "messages: an image in a message cannot name a file",
        ),
        ({f"key{number}": 1 for number in range(65)}, "parameters: 65 keys are not names of inputs; the limit is 64"),
    ],
    ids=lambda value: "-".join(list(value)[:3]) if isinstance(value, dict) else "",
)
def test_what_would_take_too_much_is_refused_by_its_name(served: Served, inputs: dict[str, Any], reason: str) -> None:
    asked = {
        name: value for name, value in {"text_input": PROMPT, "max_tokens": 4, **inputs}.items() if value is not None
    }
    if "embedding_bias_words" in asked:
        asked["embedding_bias_weights"] = [1.0] * len(asked["embedding_bias_words"])
    status, found = generate(served, MODEL, **asked)
    assert (status, reason in found["error"]) == (400, True), found
    assert len(found["error"]) < 400


def test_no_client_waits_for_the_largest_requests_of_others(served: Served, llm: LLM) -> None:
    long_rule = 'start: "x" ' + " ".join(["r"] * 8000) + '\nr: "x"?\n'
    schema = {"type": "object", "properties": {f"p{number}": {"type": "string"} for number in range(1500)}}
    grammar = {"guided_decoding_guide_type": "ebnf_grammar", "guided_decoding_guide": long_rule}
    large: list[dict[str, Any]] = [
        {"text_input": "word " * 13_107},
        {"text_input": PROMPT, **grammar},
        {
            "text_input": PROMPT,
            "guided_decoding_guide_type": "json_schema",
            "guided_decoding_guide": json.dumps(schema),
        },
        {"text_input": PROMPT, "bad_words": [f"{number} " * 200 for number in range(1024)]},
        {"text_input": PROMPT, "bad_words": ["a"] * 100_000},
        {
            "text_input": PROMPT,
            "embedding_bias_words": [str(number) for number in range(100_000)],
            "embedding_bias_weights": [1.0] * 100_000,
        },
    ]

    def send(inputs: dict[str, Any]) -> None:
        with contextlib.suppress(InferenceServerException):
            answers(served, MODEL, max_tokens=4, **inputs)

    wanted, longest_s = llm.generate([PROMPT], SamplingParams(max_tokens=3, temperature=0.0))[0].outputs[0].text, 0.0
    with ThreadPoolExecutor(len(large)) as pool:
        sent = [pool.submit(send, inputs) for inputs in large]
        while not all(each.done() for each in sent):
            started = time.monotonic()
            assert text(answers(served, MODEL, text_input=PROMPT, max_tokens=3, priority=-1)) == wanted
            longest_s = max(longest_s, time.monotonic() - started)
    assert [each.result() for each in sent] == [None] * len(large)
    assert 0 < longest_s < 60  # where they hold the engine up: minutes


def test_others_are_served_while_regexes_of_many_states_are_refused(served: Served, llm: LLM) -> None:
    regexes = [f"(a{{{500 + number}}}){{1000}}" for number in range(20)]
    wanted = llm.generate([PROMPT], SamplingParams(max_tokens=3, temperature=0.0))[0].outputs[0].text
    waits_s: list[float] = []

    def send(regex: str) -> tuple[int, str]:
        guide = {"guided_decoding_guide_type": "regex", "guided_decoding_guide": regex}
        status, answer = generate(served, MODEL, text_input=PROMPT, max_tokens=4, **guide)
        return status, answer["error"]

    with ThreadPoolExecutor(4) as pool:  # the queue takes 8
        sent = [pool.submit(send, regex) for regex in regexes]
        while not all(each.done() for each in sent):
            started = time.monotonic()
            assert text(answers(served, MODEL, text_input=PROMPT, max_tokens=3, priority=-1)) == wanted
            waits_s.append(time.monotonic() - started)
    assert [each.result() for each in sent if each.result()[0] != 400] == []
    assert all("guided_decoding_guide" in each.result()[1] for each in sent)
    assert waits_s
    assert max(waits_s) < 10  # where their first masks hold the engine up: 3 to 6 s for each


def test_over_grpc_a_wrong_request_names_the_input_too(served: Served) -> None:
    with pytest.raises(InferenceServerException, match="top_k: `-7` is not"):
        answers(served, MODEL, text_input=PROMPT, top_k=-7)


def test_cancelled_requests_end(served: Served) -> None:
    before = metric(served, GENERATED)
    asked = {"text_input": [[PROMPT]] * 3, "max_tokens": [[80]] * 3, "ignore_eos": [[True]] * 3, "stream": [[True]] * 3}
    with contextlib.ExitStack() as streams:
        first, *_ = [streams.enter_context(stream(served, MODEL, **asked)) for _ in range(3)]
        assert first() is not None
    wait_until(served, GENERATED, lambda tokens: tokens > before)
    wait_until(served, "trtkit_slots_busy", lambda slots: slots == 0)
    assert metric(served, GENERATED) - before < 9 * 80
    assert text(answers(served, MODEL, text_input=PROMPT, max_tokens=3, stream=True))


def test_an_engine_that_fails_tells_its_clients_and_ends_its_process(
    tiny_bundle: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    main(["deploy", str(tiny_bundle), "--repository", str(tmp_path / "models"), "--name", "failing", "-q"])
    code = tmp_path / "models" / "failing" / "1" / "model.py"
    code.write_text(code.read_text() + FAILING)
    with serving(tmp_path / "models") as server:
        status, found = generate(server, "failing", text_input=PROMPT, max_tokens=5)
        assert "the model failed: ValueError: the GPU is gone" in found["error"]
        assert status in {400, 500}  # 2.51 has one status for all errors of `generate`
        with pytest.raises(DeployError) as error:
            server.server.wait()
    assert error.value.what.startswith("the process of `failing` version 1 died")
    capfd.readouterr()


def test_a_full_queue_refuses_and_recovers(served: Served) -> None:
    def ask(_: int) -> str:
        status, found = generate(served, MODEL, text_input=PROMPT, max_tokens=80, ignore_eos=True)
        return "answered" if status == 200 else found["error"].partition("\n")[0]

    found, waves = set[str](), 0
    with ThreadPoolExecutor(48) as pool:
        while len(found) < 2 and waves < 20:  # one wave may be answered as fast as a busy machine sends it
            found, waves = found | set(pool.map(ask, range(48))), waves + 1
    assert found == {"answered", "8 requests are already waiting"}
    assert generate(served, MODEL, text_input=PROMPT, max_tokens=2)[0] == 200
