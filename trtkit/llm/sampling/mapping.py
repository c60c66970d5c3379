"""Settings out of a JSON object, which may use transformers' names."""

from __future__ import annotations

from difflib import get_close_matches
from typing import TYPE_CHECKING, Any

from trtkit.errors import Problem

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

# transformers' (and OpenAI's) names of what is called otherwise here.
ALIASES = {
    "max_new_tokens": "max_tokens",
    "max_completion_tokens": "max_tokens",
    "min_new_tokens": "min_tokens",
    "eos_token_id": "stop_token_ids",
    "stop_strings": "stop",
    "num_return_sequences": "n",
    "bad_words_ids": "bad_words",
    "force_words_ids": "force_words",
    "json_schema": "guided_json",
    "sequence_bias": "logit_bias",
}
_NOT_DATA = "logits_processors"


def read_mapping(data: Mapping[str, Any], names: Collection[str]) -> dict[str, Any]:
    """Return keyword arguments. Raises SettingsError for keys that are unknown or given under two names."""
    from trtkit.llm.sampling.checks import raise_problems

    problems: list[Problem] = []
    settings: dict[str, Any] = {}
    for key, value in data.items():
        name = ALIASES.get(key, key)
        if value is None or key == "do_sample":
            continue
        if name not in names or name == _NOT_DATA:
            problems.append(_unknown(key, [*(name for name in names if name != _NOT_DATA), *ALIASES, "do_sample"]))
        elif name in settings:
            problems.append(Problem(f"given twice, as `{name}` and by another name", key, f"keep `{name}`"))
        else:
            settings[name] = _from_json(key, value)
    problems += _do_sample(data.get("do_sample"), settings)
    raise_problems(problems)
    return settings


def _unknown(key: str, names: list[str]) -> Problem:
    if key == _NOT_DATA:
        return Problem("functions cannot be given as data", key, "use `SamplingParams(logits_processors=...)`")
    close = [f"`{name}`" for name in get_close_matches(key, names, n=3)]
    return Problem("unknown setting", key, f"did you mean {' or '.join(close)}?" if close else "leave it out")


def _from_json(key: str, value: Any) -> Any:
    """Undo what JSON does to a value: keys of objects are text; transformers' biases are lists of pairs."""
    if key == "sequence_bias" and isinstance(value, list):
        return dict(_single(pair) for pair in value)
    if key == "logit_bias" and isinstance(value, dict):
        return {int(token) if str(token).isdecimal() else token: bias for token, bias in value.items()}
    return value


def _single(pair: Any) -> tuple[Any, Any]:
    """Return a bias of one token; a longer run keeps its list, so that its rule names it."""
    ids, bias = pair if isinstance(pair, list) and len(pair) == 2 else (pair, None)
    if isinstance(ids, list):
        return (ids[0] if len(ids) == 1 else tuple(ids)), bias
    return repr(ids), bias


def _do_sample(value: Any, settings: dict[str, Any]) -> list[Problem]:
    """Take `do_sample`: false is temperature 0. It cannot contradict the temperature or the beams."""
    if value is None:
        return []
    if not isinstance(value, bool):
        return [Problem(f"`{value!r}` is not true or false", "do_sample")]
    temperature, beams = settings.get("temperature"), settings.get("num_beams", 1)
    if value and beams != 1:
        return [Problem(f"`true` with `num_beams={beams}`: beam search does not sample", "do_sample", "leave it out")]
    if value and temperature == 0:
        return [Problem("`true` with `temperature=0`", "do_sample", "raise `temperature`, or leave out `do_sample`")]
    if not value and temperature not in (None, 0):
        what = f"`false` with `temperature={temperature}`"
        return [Problem(what, "do_sample", "leave out `temperature`, or `do_sample`")]
    if not value:
        settings["temperature"] = 0.0
    return []
