"""Triton requests of a language model as prompts and settings."""

from __future__ import annotations

import json
from dataclasses import dataclass
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any

import numpy as np

from trtkit.deployment.triton.llm_fields import FIELDS
from trtkit.errors import Problem, RequestError
from trtkit.inputs.images import image_bytes
from trtkit.llm.sampling.checks import SettingsError
from trtkit.llm.sampling.params import SamplingParams
from trtkit.llm.scheduler import SchedulingParams
from trtkit.runtime.text.limits import MAX_WORD_LENGTH, MAX_WORDS

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from trtkit.arrays import Array
    from trtkit.llm.prompts import Prompt

_SETTINGS = {field.name: field.setting for field in FIELDS if field.setting}
_LISTS = {"stop", "bad_words"}
_DRAWS = {"top_k", "top_p", "min_p", "typical_p", "seed"}
_GUIDES = {
    "json": "guided_json",
    "json_schema": "guided_json",
    "regex": "guided_regex",
    "ebnf_grammar": "guided_grammar",
    "grammar": "guided_grammar",
}
_WORDS = {"bad_words", "stop_words", "embedding_bias_words"}
_WORD_BYTES = 4 * MAX_WORD_LENGTH
_MAX_PARAMETERS, _MAX_KEY = 64, 128
# Input names for errors that the library reports on prompts and guides.
_INPUTS = {
    "guided_json": "guided_decoding_guide",
    "guided_regex": "guided_decoding_guide",
    "guided_grammar": "guided_decoding_guide",
    "logit_bias": "embedding_bias_words",
    "adapter": "lora_name",
}
_SCHEDULING = ("priority", "user", "deadline_s")
_PROMPTS = ("text_input", "input_ids", "messages")


@dataclass(frozen=True, eq=False)
class Ask:
    """One prompt of a request. row: index among the request's prompts. input_text: text that precedes the answer."""

    row: int
    prompt: Prompt
    params: SamplingParams
    is_streamed: bool
    has_logprobs: bool
    input_text: str | None
    scheduling: SchedulingParams


@dataclass(frozen=True)
class Defaults:
    """Defaults for omitted inputs. encode: text to tokens, without those that begin and end a prompt."""

    max_tokens: int
    encode: Callable[[str], list[int]]


def read_asks(inputs: Mapping[str, Array], defaults: Defaults) -> list[Ask]:
    """Return a request's prompts. inputs: [rows, ...] by name, text as bytes.

    Raises RequestError that names the invalid input.
    """
    _check_sizes(inputs)
    rows = {name: value.shape[0] if value.ndim else 1 for name, value in inputs.items()}
    if len(set(rows.values())) > 1:
        listed = ", ".join(f"`{name}` {count}" for name, count in rows.items())
        raise RequestError(
            f"the inputs have different numbers of rows: {listed}", "inputs", "give every prompt its own row"
        )
    prompts = [name for name in _PROMPTS if name in inputs]
    if len(prompts) != 1:
        what = f"give exactly one of `text_input`, `input_ids` and `messages`; got {len(prompts)}"
        raise RequestError(what, " and ".join(prompts) or "text_input", "give one of them")
    return [
        _read_row(row, {name: value[row : row + 1].reshape(-1) for name, value in inputs.items()}, defaults)
        for row in range(next(iter(rows.values())))
    ]


def _check_sizes(inputs: Mapping[str, Array]) -> None:
    """Raise RequestError for too many or too long words.

    Other inputs' sizes are checked where their limits are known.
    """
    for name in _WORDS & inputs.keys():
        value, rows = inputs[name], max(1, inputs[name].shape[0] if inputs[name].ndim else 1)
        if value.size > MAX_WORDS * rows:
            what = f"{value.size // rows} words are more than the limit, {MAX_WORDS}"
            raise RequestError(what, name, "send fewer")
        longest = max(map(len, value.reshape(-1)), default=0)
        if longest > _WORD_BYTES:
            raise RequestError(f"a word of {longest} bytes; the limit is {_WORD_BYTES}", name, "send shorter ones")


def check_parameters(parameters: Mapping[str, Any]) -> None:
    """Refuse likely misspelled inputs: Triton makes a parameter of every key that is not an input's name.

    Raises RequestError. Other parameters are ignored: clients send some of their own.
    """
    names = [field.name for field in FIELDS]
    if len(parameters) > _MAX_PARAMETERS:
        what = f"{len(parameters)} keys are not names of inputs; the limit is {_MAX_PARAMETERS}"
        raise RequestError(what, "parameters", "send inputs by their names")
    for key in parameters:
        if len(key) > _MAX_KEY:
            raise RequestError(f"a key of {len(key)} characters", "parameters", "send inputs by their names")
        if close := get_close_matches(key, names, n=1, cutoff=0.75):
            raise RequestError("unknown input", key, f"did you mean `{close[0]}`?")


def _read_row(row: int, inputs: Mapping[str, Array], defaults: Defaults) -> Ask:
    values = {name: _values(name, value) for name, value in inputs.items()}
    is_streamed = _flag(values, "stream") or _flag(values, "streaming")
    echoes = "exclude_input_in_output" in values and not _flag(values, "exclude_input_in_output")
    has_logprobs = _flag(values, "return_log_probs")
    settings = _settings(values) | _bias(values, defaults.encode) | ({"logprobs": 0} if has_logprobs else {})
    params = _params({"max_tokens": defaults.max_tokens, **settings})
    prompt = _prompt(values)
    text = prompt if isinstance(prompt, str) else prompt.get("prompt") if isinstance(prompt, dict) else None
    scheduling = SchedulingParams(**{name: values[name][0] for name in _SCHEDULING if name in values})
    return Ask(row, prompt, params, is_streamed, has_logprobs, text if echoes else None, scheduling)


def _values(name: str, value: Array) -> list[Any]:
    """Return an input's values; text is decoded, except images. Raises RequestError if there are none."""
    if not value.size:
        raise RequestError("is empty", name, "leave it out, or give a value")
    if value.dtype != object or name == "image":
        return list(value.tolist())
    try:
        return [item.decode() for item in value]
    except UnicodeDecodeError as error:
        raise RequestError(f"is not UTF-8: {error}", name, "send text as UTF-8") from None


def _flag(values: Mapping[str, list[Any]], name: str) -> bool:
    return bool(values.get(name, [False])[0])


def _settings(values: Mapping[str, list[Any]]) -> dict[str, Any]:
    """Return the settings of a request; greedy unless it requests sampling.

    TensorRT-LLM's clients always send a temperature of 1, which has no effect there without top_k or top_p.
    """
    settings: dict[str, Any] = {}
    for name, setting in _SETTINGS.items():
        if name not in values:
            continue
        if setting in settings:
            raise RequestError(f"given twice, as `{name}` and by another name", name, "keep one")
        settings[setting] = _setting(setting, values[name])
    settings |= _guide(values)
    settings = {name: value for name, value in settings.items() if value != ()}
    if settings.get("num_beams", 1) > 1 or (settings.get("temperature", 1.0) == 1.0 and not settings.keys() & _DRAWS):
        settings["temperature"] = 1.0 if settings.get("num_beams", 1) > 1 else 0.0
    return settings


def _setting(setting: str, values: Sequence[Any]) -> Any:
    if setting in _LISTS:
        return tuple(word for word in values if word)  # clients send "" for none
    if setting == "adapter":
        return values[0] or None
    if setting == "stop_token_ids":
        return (values[0],) if values[0] >= 0 else ()
    return _short(values[0])


def _short(value: Any) -> Any:
    """Return an fp32 number as originally written: 0.7, not 0.699999988."""
    return float(str(np.float32(value))) if isinstance(value, float) else value


def _bias(values: Mapping[str, list[Any]], encode: Callable[[str], list[int]]) -> dict[str, Any]:
    """Return the logit bias setting that adds each word's weight to its tokens, as TensorRT-LLM does."""
    words, weights = values.get("embedding_bias_words", []), values.get("embedding_bias_weights", [])
    if len(words) != len(weights):
        what = f"{len(words)} words and {len(weights)} weights"
        raise RequestError(what, "embedding_bias_words", "give a weight for each word")
    bias = {token: _short(weight) for word, weight in zip(words, weights, strict=True) for token in encode(word)}
    return {"logit_bias": bias} if bias else {}


def _guide(values: Mapping[str, list[Any]]) -> dict[str, Any]:
    """Return the setting for guided decoding. Raises RequestError for unknown kinds."""
    if "guided_decoding_guide_type" not in values:
        if "guided_decoding_guide" in values:
            raise RequestError("is missing", "guided_decoding_guide_type", f"give one of {', '.join(_GUIDES)}")
        return {}
    kind = values["guided_decoding_guide_type"][0]
    if kind not in _GUIDES:
        fix = f"use one of {', '.join(_GUIDES)}"
        raise RequestError(f"unknown guide type `{kind}`", "guided_decoding_guide_type", fix)
    guide = values.get("guided_decoding_guide", [True if kind == "json" else None])[0]
    if guide is None:
        raise RequestError("is missing", "guided_decoding_guide", f"give the {kind}")
    return {_GUIDES[kind]: guide}


def _params(settings: Mapping[str, Any]) -> SamplingParams:
    """Return checked settings; problems name the inputs. Raises SettingsError."""
    try:
        return SamplingParams(**settings)
    except SettingsError as error:
        raise renamed(error) from None


def renamed(error: Exception) -> Exception:
    """Return the error with names of settings replaced by those of the request's inputs."""
    names = {setting: name for name, setting in reversed(_SETTINGS.items())} | _INPUTS
    if isinstance(error, SettingsError):
        problems = [Problem(one.what, names.get(one.where, one.where), one.fix) for one in error.problems]
        return SettingsError(error.what, problems)
    if isinstance(error, RequestError):
        return RequestError(error.what, names.get(error.where, error.where), error.fix)
    return error


def _prompt(values: Mapping[str, list[Any]]) -> Prompt:
    """Return text, tokens or a conversation, with any images."""
    images = [image_bytes(data) for data in values.get("image", [])]
    extra = {"images": images} if images else {}
    if "input_ids" in values:
        ids = values["input_ids"][: _length(values)]
        return {"prompt_token_ids": ids, **extra} if extra else ids
    if "messages" in values:
        return {"messages": _messages(values["messages"][0]), **extra}
    return {"prompt": values["text_input"][0], **extra} if extra else values["text_input"][0]


def _length(values: Mapping[str, list[Any]]) -> int:
    """Return how many of `input_ids` belong to the prompt. Raises RequestError if there are fewer."""
    most = len(values["input_ids"])
    length: int = values.get("input_lengths", [most])[0]
    if not 1 <= length <= most:
        raise RequestError(f"`{length}` is not from 1 to the {most} of `input_ids`", "input_lengths", "send the length")
    return length


def _messages(text: str) -> list[Any]:
    try:
        messages = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise RequestError(f"is not JSON: {error}", "messages", _MESSAGES) from None
    if not isinstance(messages, list) or not all(isinstance(message, dict) for message in messages):
        raise RequestError("is not a list of objects", "messages", _MESSAGES)
    for part in (
        part for message in messages if isinstance(message.get("content"), list) for part in message["content"]
    ):
        if isinstance(part, dict) and part.get("type") == "image" and part.keys() - {"type"}:
            what = "an image in a message cannot name a file on the server"
            raise RequestError(what, "messages", 'send {"type": "image"}, and its bytes as `image`')
    return messages


_MESSAGES = 'send [{"role": "user", "content": "..."}] as text'
