"""Every field of OpenAI's requests is used, ignored by the frontend, or refused, as the docs state."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.integration.dynamo.test_fleet import post
from tests.support.dynamo import MODEL

if TYPE_CHECKING:
    from tests.support.dynamo import Served

ROOT = Path(__file__).parents[3]
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}
SCHEMA = {"type": "json_schema", "json_schema": {"name": "a", "schema": {"type": "boolean"}}}
VERDICTS = USED, IGNORED, REFUSED = "used", "ignored", "refused"
BOTH: dict[str, tuple[Any, str]] = {
    "max_tokens": (3, USED),
    "temperature": (0.5, USED),
    "top_p": (0.5, USED),
    "n": (2, USED),
    "seed": (3, USED),
    "stop": (["x"], USED),
    "presence_penalty": (1.0, USED),
    "frequency_penalty": (1.0, USED),
    "stream": (True, USED),
    "stream_options": (None, USED),
    "logit_bias": ({"5": 100}, IGNORED),
    "user": ("a", IGNORED),
    "top_k": (3, USED),
    "min_p": (0.1, USED),
    "repetition_penalty": (1.2, USED),
    "min_tokens": (2, USED),
    "ignore_eos": (True, USED),
    "stop_token_ids": ([3], USED),
    "include_stop_str_in_output": (True, USED),
    "guided_json": ({"type": "boolean"}, USED),
    "guided_regex": ("a+", USED),
    "guided_grammar": ('root ::= "a"', USED),
    "guided_choice": (["a", "b"], USED),
    "prompt_logprobs": (1, USED),
    "allowed_token_ids": ([1], REFUSED),
    "typical_p": (0.5, REFUSED),
    "use_beam_search": (True, REFUSED),
    "length_penalty": (1.5, REFUSED),
    "bad_words": (["a"], REFUSED),
    "anything else": (None, REFUSED),
}
CHAT: dict[str, tuple[Any, str]] = {
    "max_completion_tokens": (3, USED),
    "logprobs": (True, USED),
    "top_logprobs": (2, USED),
    "response_format": (SCHEMA, USED),
    "tools": ([TOOL], USED),
    "tool_choice": ("auto", USED),
    "chat_template_kwargs": ({"a": 1}, USED),
    "parallel_tool_calls": (False, IGNORED),
    "reasoning_effort": ("low", IGNORED),
    "modalities": (["text"], IGNORED),
    "audio": ({"voice": "alloy", "format": "wav"}, IGNORED),
    "prediction": ({"type": "content", "content": "a"}, IGNORED),
    "service_tier": ("flex", IGNORED),
    "store": (True, IGNORED),
    "metadata": ({"a": "b"}, IGNORED),
    "web_search_options": ({}, IGNORED),
    "prompt_cache_key": ("a", IGNORED),
    "safety_identifier": ("a", REFUSED),
    "verbosity": ("low", REFUSED),
    "best_of": (2, REFUSED),
    "echo": (True, REFUSED),
}
COMPLETIONS: dict[str, tuple[Any, str]] = {
    "logprobs": (2, USED),
    "best_of": (2, REFUSED),
    "echo": (True, IGNORED),
    "suffix": ("a", IGNORED),
}
CASES = [
    *(("chat/completions", field, *case) for field, case in {**BOTH, **CHAT}.items()),
    *(("completions", field, *case) for field, case in {**BOTH, **COMPLETIONS}.items()),
]


def table(fields: dict[str, tuple[Any, str]]) -> list[str]:
    """Return the lines that the docs have of some fields."""
    names = {each: [f"`{name}`" for name, case in fields.items() if case[1] == each] for each in VERDICTS}
    return [f"| {each} | {', '.join(of_it)} |" for each, of_it in names.items() if of_it]


def answer(served: Served, path: str, **fields: Any) -> tuple[int, Any]:
    """Return the status of a greedy request, and its answers' texts."""
    prompt = {"messages": [{"role": "user", "content": "a"}]} if path.startswith("chat") else {"prompt": "a"}
    body = {"model": MODEL, "temperature": 0, "max_tokens": 4, **prompt, **fields}
    status, data = post(served, json.dumps(body).encode(), path)
    if status != 200 or body.get("stream"):
        return status, data.decode()
    choices = json.loads(data)["choices"]
    return status, [choice.get("text") or choice["message"]["content"] for choice in choices]


@pytest.mark.parametrize(("path", "field", "value", "verdict"), CASES)
def test_a_field_is_what_the_docs_say(served: Served, path: str, field: str, value: Any, verdict: str) -> None:
    more: dict[str, Any] = {"top_logprobs": {"logprobs": True}, "tool_choice": {"tools": [TOOL]}}.get(field, {})
    more |= {"temperature": 1.0, "seed": 1} if field == "n" else {}
    status, found = answer(served, path, **{field: value if field != "anything else" else 1}, **more)
    assert status == (400 if verdict == REFUSED else 200), found
    if verdict == REFUSED:
        assert field in found
    if verdict == IGNORED:
        assert found == answer(served, path)[1]


def test_stop_strings_with_ignore_eos_are_ignored_as_the_docs_say(served: Served) -> None:
    """Dynamo's frontend drops them before a worker could refuse the pair."""
    status, (text,) = answer(served, "completions", max_tokens=8, ignore_eos=True)
    assert status == 200
    stop = text[len(text) // 2]
    assert answer(served, "completions", max_tokens=8, stop=[stop])[1] == [text[: text.index(stop)]]
    assert answer(served, "completions", max_tokens=8, stop=[stop], ignore_eos=True)[1] == [text]
    assert "drops `stop` when `ignore_eos` is set" in " ".join((ROOT / "docs/openai-fields.md").read_text().split())


def test_the_docs_list_them_all() -> None:
    lines = (ROOT / "docs/openai-fields.md").read_text().splitlines()
    for fields in (BOTH, CHAT, COMPLETIONS):
        assert not set(table(fields)) - set(lines), "\n".join(table(fields))
