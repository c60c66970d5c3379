"""Rules of single settings: types, ranges, what to do instead."""

from __future__ import annotations

import math
from dataclasses import dataclass
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any

from trtkit.errors import Problem, ProblemsError, RequestError
from trtkit.llm.sampling.lists import read_bias, read_callables, read_choice, read_ids, read_texts, read_words
from trtkit.llm.sampling.schema_text import read_grammar, read_json
from trtkit.runtime.text.limits import (
    MAX_ANSWERS,
    MAX_COUNT,
    MAX_EXPONENT,
    MAX_FLOAT,
    MAX_LOGPROBS,
    shown,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

INFINITY = math.inf


class SettingsError(ProblemsError, RequestError):
    """Settings that cannot be; every problem of them."""


def raise_problems(problems: list[Problem]) -> None:
    """Raise SettingsError if there is a problem."""
    if problems:
        raise SettingsError("the sampling settings cannot be used", problems)


@dataclass(frozen=True)
class NumberRange:
    """A number between two limits, both allowed unless `above` says that the lower one is not.

    most: where one request would take too much of the machine.
    """

    low: float = -INFINITY
    high: float = INFINITY
    integer: bool = True
    above: bool = False
    optional: bool = False
    most: float = INFINITY
    fix: str = ""

    def __call__(self, value: Any) -> Any:
        """Return the number as an int or a float. Raises ValueError with the fault."""
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


# Each returns the value as it is kept, or raises ValueError with the fault.
RULES: dict[str, Callable[[Any], Any]] = {
    "n": NumberRange(1, most=MAX_ANSWERS),
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
    """Return the values as they are kept (those at fault left out) and what is wrong with the others."""
    kept, problems = {}, []
    for name, value in values.items():
        try:
            kept[name] = RULES[name](value)
        except ValueError as error:
            problems.append(Problem(str(error), name, _FIXES.get(name, "")))
    return kept, problems
