"""A language model on a real tritonserver: answers equal those of the same bundle in this process."""

from __future__ import annotations

import http.client
import json
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from tests.support.docs import exported_metrics, queried_metrics
from tests.support.served_llm import MODEL, PROMPT, answers, generate, text
from trtkit import LLM, SamplingParams

if TYPE_CHECKING:
    from tests.support.triton import Served


def expected(llm: LLM, prompt: Any = PROMPT, **settings: Any) -> Any:
    """Return the answers of this process."""
    return llm.generate([prompt], SamplingParams(**{"max_tokens": 12, "temperature": 0.0, **settings}))[0]


def test_pieces_make_the_answer_and_come_one_by_one(served: Served, llm: LLM) -> None:
    found = answers(served, MODEL, text_input=PROMPT, max_tokens=12, stream=True)
    wanted = expected(llm).outputs[0]
    assert text(found) == wanted.text
    assert [token for each in found for token in each["output_ids"].reshape(-1)] == list(wanted.token_ids)
    assert len(found) > 6
    assert found[-1]["finish_reason"][0].decode() == wanted.finish_reason
    assert all(each["finish_reason"][0] == b"" for each in found[:-1])


@pytest.mark.parametrize(
    ("inputs", "settings"),
    [
        ({"top_p": 0.9, "seed": 3}, {"temperature": 1.0, "top_p": 0.9, "seed": 3}),
        ({"temperature": 0.7, "runtime_top_k": 5, "random_seed": 4}, {"temperature": 0.7, "top_k": 5, "seed": 4}),
        ({"min_p": 0.1, "typical_p": 0.8, "seed": 5}, {"temperature": 1.0, "min_p": 0.1, "typical_p": 0.8, "seed": 5}),
        ({"temperature": 1.0}, {}),
        ({"repetition_penalty": 1.3, "min_tokens": 4}, {"repetition_penalty": 1.3, "min_tokens": 4}),
        ({"presence_penalty": 0.5, "frequency_penalty": 0.4}, {"presence_penalty": 0.5, "frequency_penalty": 0.4}),
        ({"no_repeat_ngram_size": 2, "ignore_eos": True}, {"no_repeat_ngram_size": 2, "ignore_eos": True}),
        ({"bad_words": ["e", "t"], "stop_words": ["a"]}, {"bad_words": ("e", "t"), "stop": ("a",)}),
        ({"bad_words": [""], "stop_words": [""], "end_id": 300, "pad_id": 0}, {"stop_token_ids": (300,)}),
        ({"beam_width": 2, "len_penalty": 0.5}, {"temperature": 1.0, "num_beams": 2, "length_penalty": 0.5}),
        ({"embedding_bias_words": ["z"], "embedding_bias_weights": [50.0]}, {"logit_bias": {}}),
        ({"guided_decoding_guide_type": "regex", "guided_decoding_guide": "[0-9]{6}"}, {"guided_regex": "[0-9]{6}"}),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else "",
)
def test_settings_mean_what_they_mean_here(
    served: Served, llm: LLM, inputs: dict[str, Any], settings: dict[str, Any]
) -> None:
    if "logit_bias" in settings:
        (token,) = llm.tokenizer.encode("z", add_special_tokens=False)
        settings = {"logit_bias": {token: 50.0}}
    (found,) = answers(served, MODEL, text_input=PROMPT, max_tokens=12, **inputs)
    wanted = expected(llm, **settings).outputs[0]
    assert found["text_output"][0].decode() == wanted.text
    assert found["output_ids"][0, 0].tolist() == list(wanted.token_ids)


def test_several_answers_of_one_prompt_with_their_probabilities(served: Served, llm: LLM) -> None:
    asked = {"num_return_sequences": 2, "top_p": 0.9, "seed": 3, "return_log_probs": True}
    (found,) = answers(served, MODEL, text_input=PROMPT, max_tokens=6, **asked)
    wanted = expected(llm, max_tokens=6, n=2, temperature=1.0, top_p=0.9, seed=3, logprobs=0).outputs
    assert [item.decode() for item in found["text_output"]] == [each.text for each in wanted]
    sums = [each.cumulative_logprob for each in wanted]
    np.testing.assert_allclose(found["cum_log_probs"][0], sums, rtol=1e-4)
    np.testing.assert_allclose(found["output_log_probs"][0].sum(axis=-1), sums, rtol=1e-4)


def test_tokens_in_tokens_out(served: Served, llm: LLM) -> None:
    ids = [5, 6, 7, 8]
    asked = {"input_ids": [*ids, 0, 0], "input_lengths": len(ids), "request_output_len": 7, "streaming": False}
    (found,) = answers(served, MODEL, **asked)
    wanted = expected(llm, ids, max_tokens=7).outputs[0]
    assert found["output_ids"].shape == (1, 1, 7)
    assert found["output_ids"][0, 0].tolist() == list(wanted.token_ids)
    assert found["sequence_length"].tolist() == [[7]]
    assert found["num_input_tokens"].tolist() == [[4]]


def test_prompts_of_one_request_are_answered_each(served: Served, llm: LLM) -> None:
    prompts = [PROMPT, "rain", "night and day"]
    found = answers(served, MODEL, text_input=[[each] for each in prompts], max_tokens=[[5], [6], [7]])
    by_row = {int(each["batch_index"][0, 0]): each for each in found}
    for row, prompt in enumerate(prompts):
        assert by_row[row]["text_output"][0].decode() == expected(llm, prompt, max_tokens=5 + row).outputs[0].text


def test_a_conversation_goes_through_the_template(served: Served, llm: LLM) -> None:
    messages = [{"role": "user", "content": "hello"}]
    status, found = generate(served, MODEL, messages=json.dumps(messages), max_tokens=9)
    assert status == 200, found
    wanted = llm.chat(messages, SamplingParams(temperature=0.0, max_tokens=9))[0].outputs[0]
    assert found["text_output"] == wanted.text


def test_the_prompt_comes_back_where_asked(served: Served, llm: LLM) -> None:
    _, found = generate(served, MODEL, text_input=PROMPT, max_tokens=5, exclude_input_in_output=False)
    assert found["text_output"] == PROMPT + expected(llm, max_tokens=5).outputs[0].text


def test_the_http_stream_has_the_same_pieces(served: Served) -> None:
    connection = http.client.HTTPConnection(served.http, timeout=60)
    asked = {"text_input": PROMPT, "max_tokens": 6, "stream": True}
    connection.request("POST", f"/v2/models/{MODEL}/generate_stream", json.dumps(asked))
    lines = connection.getresponse().read().decode().splitlines()
    pieces = [json.loads(line.removeprefix("data: ")) for line in lines if line]
    over_grpc = answers(served, MODEL, text_input=PROMPT, max_tokens=6, stream=True)
    assert [piece["text_output"] for piece in pieces] == [each["text_output"][0].decode() for each in over_grpc]


def test_many_clients_at_once_get_what_each_gets_alone(served: Served, llm: LLM) -> None:
    prompts = [f"{number} birds" for number in range(6)]

    def ask(prompt: str) -> str:
        return text(answers(served, MODEL, text_input=prompt, max_tokens=20, stream=True))

    with ThreadPoolExecutor(6) as pool:
        found = list(pool.map(ask, prompts))
    assert found == [expected(llm, prompt, max_tokens=20).outputs[0].text for prompt in prompts]


def test_the_board_queries_what_the_server_exports(served: Served) -> None:
    generate(served, MODEL, text_input=PROMPT, max_tokens=4)
    with urllib.request.urlopen(served.metrics, timeout=60) as response:
        exported = exported_metrics(response.read().decode())
    queried = queried_metrics(1)
    assert len(queried) > 8
    assert queried - exported == set()
