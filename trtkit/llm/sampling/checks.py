"""Checks of single settings: types, ranges, lists and guides, and what to use instead of what is refused."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any

from trtkit.errors import Problem, ProblemsError, RequestError
from trtkit.runtime.text.limits import (
    MAX_ANSWERS,
    MAX_COUNT,
    MAX_EXPONENT,
    MAX_FLOAT,
    MAX_GRAMMAR_LENGTH,
    MAX_LOGPROBS,
    MAX_MULTIPLE,
    MAX_SCHEMA_LENGTH,
    MAX_STOP_LENGTH,
    MAX_STOP_TOKENS,
    MAX_STOPS,
    MAX_WORD_LENGTH,
    MAX_WORDS,
    check_count,
    check_text,
    shown,
)

if TYPE_CHECKING:
    from collections.abc import Callable

INFINITY = math.inf
_MULTIPLE = re.compile(r"""["']multipleof["']\s*:\s*([0-9.]+(?:e[+-]?[0-9]+)?)""")
_ESCAPED = re.compile(r"\\u([0-9a-fA-F]{4})")
ANY_OBJECT = {"type": "object"}


class SettingsError(ProblemsError, RequestError):
    """Invalid settings, with every problem of theirs."""


def raise_problems(problems: list[Problem]) -> None:
    """Raise SettingsError if there is a problem."""
    if problems:
        raise SettingsError("the sampling settings cannot be used", problems)


@dataclass(frozen=True)
class NumberRange:
    """A number between two limits, both allowed unless `above` excludes the lower one.

    most: set if one request could otherwise take too much of the machine.
    """

    low: float = -INFINITY
    high: float = INFINITY
    integer: bool = True
    above: bool = False
    optional: bool = False
    most: float = INFINITY
    fix: str = ""

    def __call__(self, value: Any) -> Any:
        """Return the number as an int or a float. Raises ValueError with the reason."""
        if value is None and self.optional:
            return None
        if isinstance(value, bool) or not isinstance(value, Integral if self.integer else Real):
            raise ValueError(self._fault(value))
        number: float = int(value) if self.integer else float(value)  # type: ignore[call-overload]
        if not math.isfinite(number) or not self.low <= number <= self.high or (self.above and number == self.low):
            raise ValueError(self._fault(value))
        if abs(number) > self.most:
            raise ValueError(f"`{shown(value)}` is above the limit, {_limit(self.most)}")
        return number

    def _fault(self, value: Any) -> str:
        kind = "a whole number" if self.integer else "a finite number"
        if self.low > -INFINITY:
            kind += f" above {self.low:g}" if self.above else f" of at least {self.low:g}"
        if self.high < INFINITY:
            kind += f" and at most {_limit(self.high)}"
        return f"`{shown(value)}` is not {kind}" + (" or None" if self.optional else "")


def _limit(high: float) -> str:
    powers = {2**bits - 1: f"2**{bits} - 1" for bits in (31, 64)}
    return next((text for value, text in powers.items() if value == high), f"{high:g}")


def _flag(value: Any) -> bool:
    if not isinstance(value, bool):
        raise ValueError(f"`{shown(value)}` is not true or false")
    return value


def _name(value: Any) -> str | None:
    if value is not None and not (isinstance(value, str) and value):
        raise ValueError(f"`{shown(value)}` is not a name")
    return value


def _early_stopping(value: Any) -> Any:
    if not (isinstance(value, bool) or value == "never"):
        raise ValueError(f"`{shown(value)}` is not true, false or `never`")
    return value


def _top_k(value: Any) -> int:
    count = int(NumberRange(-1, most=MAX_COUNT)(value))
    return 0 if count == -1 else count


def _items(value: Any, of: str, limit: int) -> Sequence[Any]:
    if isinstance(value, Sequence | set | frozenset) and not isinstance(value, str | bytes):
        check_count(len(value), limit, of)
        return tuple(value)
    raise ValueError(f"`{shown(value)}` is not a list of {of}")


def _token_id(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, Integral) or value < 0:
        raise ValueError(f"`{shown(value)}` is not a token id, a whole number of at least 0")
    return int(value)


def read_ids(value: Any) -> tuple[int, ...]:
    """Return token ids; a single id becomes a list of one."""
    if isinstance(value, Integral) and not isinstance(value, bool):
        return (_token_id(value),)
    return tuple(_token_id(item) for item in _items(value, "token ids", MAX_STOP_TOKENS))


def read_texts(value: Any, most: int = MAX_STOPS, longest: int = MAX_STOP_LENGTH) -> tuple[str, ...]:
    """Return texts, none of them empty; a single text becomes a list of one."""
    texts = (value,) if isinstance(value, str) else _items(value, "texts", most)
    for text in texts:
        if not isinstance(text, str) or not text:
            raise ValueError(f"`{shown(text)}` is not a non-empty text")
        check_count(len(text), longest, "characters of a text")
        check_text(text)
    return tuple(texts)


def read_words(value: Any) -> tuple[str | tuple[int, ...], ...]:
    """Return words: texts or token ids, none of them empty."""
    return tuple(_word(item) for item in _items(value, "words", MAX_WORDS))


def _word(value: Any) -> str | tuple[int, ...]:
    if isinstance(value, str):
        return read_texts(value, MAX_WORDS, MAX_WORD_LENGTH)[0]
    ids = tuple(_token_id(item) for item in _items(value, "token ids", MAX_WORD_LENGTH))
    if not ids:
        raise ValueError("`[]` has no tokens")
    return ids


def read_bias(value: Any) -> dict[int, float]:
    """Return a mapping from token ids to finite numbers, which are added to their scores."""
    if not isinstance(value, Mapping):
        raise ValueError(f"`{shown(value)}` is not a mapping of token ids to numbers")
    return {_token_id(key): _finite(key, bias) for key, bias in value.items()}


def _finite(key: Any, bias: Any) -> float:
    if isinstance(bias, bool) or not isinstance(bias, Real) or not math.isfinite(bias):
        raise ValueError(f"the bias of token {key}, `{shown(bias)}`, is not a finite number")
    if abs(float(bias)) > MAX_FLOAT:
        raise ValueError(f"the bias of token {key}, `{shown(bias)}`, is beyond {MAX_FLOAT:g}")
    return float(bias)


def read_callables(value: Any) -> tuple[Any, ...]:
    """Return functions."""
    items = _items(value, "functions", MAX_WORDS)
    for item in items:
        if not callable(item):
            raise ValueError(f"`{shown(item)}` cannot be called")
    return tuple(items)


def read_choice(value: Any) -> tuple[str, ...] | None:
    """Return the texts to choose from, at least one."""
    if value is None:
        return None
    if isinstance(value, str) or not _items(value, "texts", MAX_WORDS):
        raise ValueError(f"`{shown(value)}` is not a non-empty list of texts")
    return read_texts(value, MAX_WORDS, MAX_WORD_LENGTH)


def read_json(value: Any) -> Any:
    """Return a schema as an object; True and {} allow any JSON object."""
    if value is None:
        return None
    if isinstance(value, str):
        _check_text(value, MAX_SCHEMA_LENGTH)
        value = _parse(value)
    if value is True or value == {}:
        return dict(ANY_OBJECT)
    if not isinstance(value, Mapping):
        raise ValueError(f"`{shown(value)}` is not a JSON schema")
    _check_json(value)
    return value


def _parse(text: str) -> Any:
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("the schema is nested too deeply") from None
    except json.JSONDecodeError as error:
        raise ValueError(f"the schema is not JSON: line {error.lineno}, column {error.colno}: {error.msg}") from None


def _check_json(value: Any) -> None:
    try:
        text = json.dumps(value, ensure_ascii=False)
    except RecursionError:
        raise ValueError("the schema is nested too deeply") from None
    except (TypeError, ValueError) as error:
        raise ValueError(f"the schema is not JSON: {error}") from None
    _check_text(text, MAX_SCHEMA_LENGTH)


def _check_text(text: str, limit: int) -> None:
    """Raise ValueError for a guide that would take too long to compile."""
    check_count(len(text), limit, "characters")
    check_text(text)
    plain = _ESCAPED.sub(lambda escape: chr(int(escape[1], 16)), text)
    digits = [match.partition("e")[0].replace(".", "").strip("0") for match in _MULTIPLE.findall(plain.lower())]
    multiple = math.lcm(*(int(digit) for digit in digits if digit))
    if multiple > MAX_MULTIPLE:
        what = f"`multipleOf` with a least common multiple of {shown(multiple)}"
        raise ValueError(f"{what} is above the limit, {MAX_MULTIPLE}, zeros at its ends not counted")


def read_grammar(value: Any) -> str | None:
    """Return text that is not empty."""
    if value is not None and (not isinstance(value, str) or not value.strip()):
        raise ValueError(f"`{shown(value)}` is not a non-empty text")
    if value is not None:
        _check_text(value, MAX_GRAMMAR_LENGTH)
    return value


# Each returns the value to store, or raises ValueError with the reason.
RULES: dict[str, Callable[[Any], Any]] = {
    "n": NumberRange(1, most=MAX_ANSWERS),
    "do_sample": lambda value: None if value is None else _flag(value),
    "temperature": NumberRange(0, integer=False, most=MAX_FLOAT),
    "top_k": _top_k,
    "top_p": NumberRange(0, 1, integer=False, above=True),
    "min_p": NumberRange(0, 1, integer=False),
    "typical_p": NumberRange(0, 1, integer=False, above=True),
    "seed": NumberRange(0, 2**64 - 1, optional=True),
    "repetition_penalty": NumberRange(0, integer=False, above=True, most=MAX_FLOAT),
    "presence_penalty": NumberRange(-2, 2, integer=False),
    "frequency_penalty": NumberRange(-2, 2, integer=False),
    "no_repeat_ngram_size": NumberRange(0, most=MAX_COUNT),
    "bad_words": read_words,
    "force_words": read_words,
    "max_tokens": NumberRange(1, most=MAX_COUNT),
    "min_tokens": NumberRange(0, most=MAX_COUNT),
    "stop": read_texts,
    "stop_token_ids": read_ids,
    "ignore_eos": _flag,
    "include_stop_str_in_output": _flag,
    "logit_bias": read_bias,
    "logprobs": NumberRange(0, optional=True, most=MAX_LOGPROBS),
    "prompt_logprobs": NumberRange(0, optional=True, most=MAX_LOGPROBS),
    "logits_processors": read_callables,
    "guided_json": read_json,
    "guided_regex": read_grammar,
    "guided_grammar": read_grammar,
    "guided_choice": read_choice,
    "num_beams": NumberRange(1, most=MAX_ANSWERS),
    "num_beam_groups": NumberRange(1, most=MAX_ANSWERS),
    "diversity_penalty": NumberRange(0, integer=False, most=MAX_FLOAT),
    "length_penalty": NumberRange(integer=False, most=MAX_EXPONENT),
    "early_stopping": _early_stopping,
    "skip_special_tokens": _flag,
    "adapter": _name,
}
_FIXES = {
    "temperature": "0 takes the most likely token; 1 leaves the distribution as it is",
    "top_k": "0 or -1 keeps every token",
    "top_p": "1 keeps every token; `temperature=0` takes the most likely one",
    "min_p": "0 keeps every token",
    "typical_p": "1 keeps every token",
    "seed": "leave it out for draws that differ each time",
    "repetition_penalty": "1 is no penalty",
    "presence_penalty": "0 is no penalty",
    "frequency_penalty": "0 is no penalty",
    "no_repeat_ngram_size": "0 allows every repetition",
    "max_tokens": "ask for at least one token",
    "logprobs": "leave it out for none",
    "prompt_logprobs": "leave it out for none",
    "bad_words": 'give texts or lists of token ids: `["word", [15, 27]]`',
    "force_words": 'give texts or lists of token ids: `["word", [15, 27]]`',
    "stop": 'give texts: `["\\n\\n"]`',
    "stop_token_ids": "give token ids: `[2, 32000]`",
    "logit_bias": "give token ids and what to add to their scores: `{15: -100}`",
    "logits_processors": "give functions of `input_ids` [1, L] and `scores` [1, V] that return scores",
    "guided_json": "give a JSON schema as an object or as text, or true for any object",
    "guided_regex": "give the expression as text",
    "guided_grammar": "give a Lark or GBNF grammar as text",
    "adapter": "use the name that the adapter was loaded under",
    "guided_choice": 'give the texts to choose from: `["yes", "no"]`',
}


def read_fields(values: Mapping[str, Any]) -> tuple[dict[str, Any], list[Problem]]:
    """Return the values to store, without invalid ones, and the problems of those."""
    kept, problems = {}, []
    for name, value in values.items():
        try:
            kept[name] = RULES[name](value)
        except ValueError as error:
            problems.append(Problem(str(error), name, _FIXES.get(name, "")))
    return kept, problems
