"""OpenAI's client gets the bundle's own answers: chat, streams, log probabilities, guides, tools."""

from __future__ import annotations

import json
import re
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import jsonschema
import pytest
from openai import BadRequestError, NotFoundError

from tests.support.dynamo import MODEL, Served, wait_until
from trtkit import SamplingParams

if TYPE_CHECKING:
    from openai import OpenAI

    from trtkit import LLM

MESSAGES: Any = [{"role": "user", "content": "the sky is"}]
SEEDED = {"temperature": 0.9, "top_p": 0.8, "seed": 7}
SCHEMA = {
    "type": "object",
    "properties": {"is_day": {"type": "boolean"}, "color": {"enum": ["red", "blue"]}},
    "required": ["is_day", "color"],
    "additionalProperties": False,
}


def chat(client: OpenAI, **settings: Any) -> Any:
    return client.chat.completions.create(model=MODEL, messages=MESSAGES, **{"max_tokens": 12, **settings})


def complete(client: OpenAI, prompt: Any = "the sky is", **settings: Any) -> Any:
    return client.completions.create(model=MODEL, prompt=prompt, **{"max_tokens": 12, **settings})


def answers(local: LLM, prompt: Any, **settings: Any) -> list[Any]:
    """Return the answers of the same bundle in this process."""
    params = SamplingParams(**{"max_tokens": 12, "temperature": 1.0, **settings})
    return list(local.generate([prompt], params)[0].outputs)


def ended(client: OpenAI, **settings: Any) -> Any:
    """Return the first answer of a hundred that comes to its end: a random model likes to write spaces."""
    settings |= {"max_tokens": 64, "frequency_penalty": 2.0}
    choices = (chat(client, seed=seed, **settings).choices[0] for seed in range(100))
    return next(choice for choice in choices if choice.finish_reason != "length")


def test_a_conversation_is_answered(client: OpenAI, local: LLM) -> None:
    (wanted,) = answers(local, {"messages": MESSAGES}, temperature=0.0)
    answer = chat(client, temperature=0)
    assert answer.choices[0].message.content == wanted.text
    assert answer.choices[0].finish_reason == wanted.finish_reason
    assert answer.usage.completion_tokens == len(wanted.token_ids)


def test_conversations_find_their_caches_again(served: Served, client: OpenAI, local: LLM) -> None:
    """Each second turn goes to the worker that has the first, and computes only what is new."""
    histories: list[list[Any]] = [
        [{"role": "user", "content": f"{word} the sky is high"}] for word in ("one", "two", "six")
    ]
    first = []
    for history in histories:
        answer = client.chat.completions.create(model=MODEL, messages=history, max_tokens=4, temperature=0)
        first.append(answer.usage.prompt_tokens if answer.usage else 0)
        history += [
            {"role": "assistant", "content": answer.choices[0].message.content},
            {"role": "user", "content": "?"},
        ]
    computed = served.metric("prompt_tokens_total")
    for history, length in zip(histories, first, strict=True):
        answer = client.chat.completions.create(model=MODEL, messages=history, max_tokens=4, temperature=0)
        (wanted,) = answers(local, {"messages": history}, temperature=0.0, max_tokens=4)
        assert answer.choices[0].message.content == wanted.text
        usage: Any = answer.usage
        assert usage.prompt_tokens_details.cached_tokens >= length
        computed += usage.prompt_tokens - usage.prompt_tokens_details.cached_tokens
    assert served.metric("prompt_tokens_total") == computed
    assert 0 < served.metric("cache_hit_rate") < 2  # the sum over two workers


def test_a_stream_has_the_same_text_and_its_usage(client: OpenAI, local: LLM) -> None:
    (wanted,) = answers(local, {"messages": MESSAGES}, **SEEDED)
    pieces = list(chat(client, stream=True, stream_options={"include_usage": True}, **SEEDED))
    texts = [piece.choices[0].delta.content or "" for piece in pieces if piece.choices]
    assert "".join(texts) == wanted.text
    assert len(texts) > 3
    assert pieces[-1].usage.completion_tokens == len(wanted.token_ids)


@pytest.mark.parametrize(
    ("settings", "extra"),
    [
        (SEEDED, {}),
        ({**SEEDED, "presence_penalty": 1.5, "frequency_penalty": 0.5}, {}),
        (SEEDED, {"top_k": 3}),
        (SEEDED, {"min_p": 0.2}),
        (SEEDED, {"repetition_penalty": 1.3}),
        (SEEDED, {"min_tokens": 12}),
        ({"temperature": 0.0}, {"ignore_eos": True}),
    ],
)
def test_settings_mean_what_they_mean_here(
    client: OpenAI, local: LLM, settings: dict[str, float], extra: dict[str, Any]
) -> None:
    (wanted,) = answers(local, "the sky is", **settings, **extra)
    assert complete(client, extra_body=extra, **settings).choices[0].text == wanted.text


def test_three_answers_each_of_its_own_seed(client: OpenAI, local: LLM) -> None:
    wanted = [each.text for each in answers(local, "the sky is", n=3, **SEEDED)]
    found = complete(client, n=3, **SEEDED).choices
    assert [each.text for each in sorted(found, key=lambda each: each.index)] == wanted
    assert len(set(wanted)) == 3


def test_several_prompts_of_tokens_and_of_text(client: OpenAI, local: LLM) -> None:
    texts = complete(client, ["the sky is", "a"], temperature=0).choices
    wanted = [answers(local, prompt, temperature=0.0)[0].text for prompt in ("the sky is", "a")]
    assert [each.text for each in texts] == wanted
    assert (
        complete(client, [5, 6, 7], temperature=0).choices[0].text == answers(local, [5, 6, 7], temperature=0.0)[0].text
    )


def test_log_probabilities_of_answers(client: OpenAI, local: LLM) -> None:
    (wanted,) = answers(local, {"messages": MESSAGES}, temperature=0.0, logprobs=2)
    places = chat(client, temperature=0, logprobs=True, top_logprobs=2).choices[0].logprobs.content
    assert [place.logprob for place in places] == pytest.approx([each.logprob for each in wanted.logprobs], abs=1e-5)
    for place, own in zip(places, wanted.logprobs, strict=True):
        assert [each.logprob for each in place.top_logprobs] == pytest.approx([top[1] for top in own.top], abs=1e-5)


def test_log_probabilities_of_prompts(client: OpenAI, local: LLM) -> None:
    params = SamplingParams(max_tokens=1, temperature=0.0, prompt_logprobs=0)
    output = local.generate([{"messages": MESSAGES}], params)[0]
    first, *places = chat(client, temperature=0, max_tokens=1, extra_body={"prompt_logprobs": 0}).prompt_logprobs
    assert first is None
    chosen = [place[str(token)]["logprob"] for place, token in zip(places, output.prompt_token_ids[1:], strict=True)]
    assert chosen == pytest.approx([each.logprob for each in output.prompt_logprobs or ()], abs=1e-5)


def test_stops(client: OpenAI, local: LLM) -> None:
    (whole,) = answers(local, "the sky is", temperature=0.0)
    stop = whole.text[4:6]
    before = whole.text[: whole.text.index(stop)]
    choice = complete(client, temperature=0, stop=[stop]).choices[0]
    assert (choice.text, choice.finish_reason) == (before, "stop")
    extra: Any = {"include_stop_str_in_output": True}
    assert complete(client, temperature=0, stop=[stop], extra_body=extra).choices[0].text == before + stop
    token = whole.token_ids[5]
    count = complete(client, temperature=0, extra_body={"stop_token_ids": [token]}).usage.completion_tokens
    assert count == whole.token_ids.index(token) + 1


def test_answers_follow_a_schema_an_expression_a_grammar_a_list(client: OpenAI) -> None:
    form: Any = {"type": "json_schema", "json_schema": {"name": "sky", "schema": SCHEMA, "strict": True}}
    jsonschema.validate(json.loads(ended(client, response_format=form).message.content), SCHEMA)
    cases: list[tuple[dict[str, Any], str]] = [
        ({"guided_regex": "[a-c]{4}"}, "[a-c]{4}"),
        ({"guided_choice": ["day", "night"]}, "day|night"),
        ({"guided_grammar": 'root ::= "x" [0-9] "y"'}, "x[0-9]y"),
        ({"guided_json": {"type": "boolean"}}, "true|false"),
    ]
    for guide, pattern in cases:
        assert re.fullmatch(pattern, chat(client, seed=2, extra_body=guide).choices[0].message.content), guide


def test_tools_are_called_by_their_schema(client: OpenAI) -> None:
    tools: Any = [{"type": "function", "function": {"name": "look", "description": "d", "parameters": SCHEMA}}]
    choice: Any = {"type": "function", "function": {"name": "look"}}
    (call,) = ended(client, tools=tools, tool_choice=choice).message.tool_calls
    assert call.function.name == "look"
    jsonschema.validate(json.loads(call.function.arguments), SCHEMA)


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"extra_body": {"allowed_token_ids": [1]}}, "`allowed_token_ids` is not supported"),
        ({"extra_body": {"guided_regex": "a("}}, "guided_regex: `a\\(`, column 2"),
        ({"extra_body": {"bogus": 1}}, "Unsupported parameter"),
        ({"temperature": 3}, "Temperature must be between 0 and 2"),
        ({"max_tokens": 0}, "Max tokens must be greater than 0"),
        ({"extra_body": {"stop_token_ids": [10**6]}}, "stop_token_ids"),
        ({"extra_body": {"nvext": {"annotations": ["priority:high"]}}}, "priority: `high` is not a number"),
        ({"extra_body": {"nvext": {"annotations": ["deadline_s:0"]}}}, "a deadline of 0 s has passed"),
    ],
)
def test_what_cannot_be_is_refused_by_name(client: OpenAI, settings: dict[str, Any], text: str) -> None:
    with pytest.raises(BadRequestError, match=text):
        chat(client, **settings)


def test_prompts_that_do_not_fit_and_models_that_are_not_served(client: OpenAI) -> None:
    with pytest.raises(BadRequestError, match="a slot holds 96"):
        complete(client, "a " * 200)
    with pytest.raises(BadRequestError, match="Invalid request"):
        complete(client, [10**6])
    with pytest.raises(NotFoundError):
        client.completions.create(model="other", prompt="a")


def test_clients_that_go_free_their_slots(served: Served, client: OpenAI) -> None:
    streams = [complete(client, max_tokens=80, stream=True, extra_body={"ignore_eos": True}) for _ in range(6)]
    for stream in streams:
        next(iter(stream))
        stream.close()
    wait_until(lambda: served.metric("slots_busy") == 0 and served.metric("requests_waiting") == 0)


def test_32_clients_get_what_they_would_alone(served: Served, client: OpenAI, local: LLM) -> None:
    settings: list[dict[str, Any]] = [
        {"temperature": 0.0} if index % 2 else {**SEEDED, "seed": index} for index in range(32)
    ]
    prompts = [f"number {index % 5} the sky is" for index in range(32)]
    wanted = [answers(local, prompt, **each)[0].text for prompt, each in zip(prompts, settings, strict=True)]
    with ThreadPoolExecutor(32) as pool:
        found = pool.map(
            lambda pair: complete(client, pair[0], **pair[1]).choices[0].text, zip(prompts, settings, strict=True)
        )
        assert list(found) == wanted
    assert served.metric("slots_busy") == 0
    assert served.metric("reused_tokens_total") > 0
