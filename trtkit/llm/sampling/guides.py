"""Guided decoding: answers that follow a JSON schema, a regular expression, a grammar or a choice, by llguidance."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from trtkit.errors import Problem, RequestError
from trtkit.llm.sampling.checks import raise_problems

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from trtkit.llm.sampling.params import Ids, SamplingParams

# Number of compiled grammars to keep. Each takes up to 35 MiB: that of _MOST_STATES, and some for the lexer.
_CACHED, _MOST_STATES = 8, 40_000
_FIXES = {
    "guided_json": "leave out what llguidance lacks: github.com/guidance-ai/llguidance/blob/main/docs/json_schema.md",
    "guided_regex": "use the syntax of Rust's `regex`, without look-around and back-references",
    "guided_grammar": "a Lark grammar has a rule `start:`, a GBNF grammar `root ::=`",
}
_UNSATISFIABLE = "change the schema: no JSON value satisfies it, so no answer could"
_ENDLESS = "a rule or reference leads only to itself, so no answer can begin"
_TOO_LARGE = "simplify it: lower counts such as `{1000}`, or use `*` or `+` in their stead"
_LONGEST = 300  # characters of a message
# Where a message shows the expression with a mark below the fault, and where it starts with line and column.
_REGEX_FAULT = re.compile(r"regex parse error:\n    (?P<text>.*)\n(?P<indent> *)\^+\nerror: (?P<what>.*)")
_LARK_FAULT = re.compile(r"^(?:at )?(?P<line>\d+)\((?P<column>\d+)\): (?P<what>.*)")
# Keywords of a schema that contain schemas.
_NAMED = ("properties", "patternProperties", "$defs", "definitions")
_LISTED = ("anyOf", "oneOf", "allOf", "prefixItems")
_SINGLE = ("items", "additionalProperties", "additionalItems", "not")
_SHARED = ("$defs", "definitions")
_MOST_READ = 256 * 1024  # characters of parts compiled to locate a fault: about a second


class Guide:
    """An answer's state in its grammar.

    ends: the model's end-of-sequence tokens, each of which the grammar accepts as its end.
    """

    def __init__(self, matcher: Any, own_ends: Ids, ends: Ids) -> None:
        self._matcher = matcher
        self._own_ends = own_ends
        self._ends = ends
        self._ended = False

    @property
    def error(self) -> str:
        """Why the grammar failed; empty if it has not."""
        return str(self._matcher.get_error()).partition("\n")[0] if self._matcher.is_error() else ""

    def allowed(self, vocab_size: int) -> np.ndarray[Any, np.dtype[np.bool_]]:
        """Return [V], whether each token may follow; only end-of-sequence tokens if the answer must end."""
        allowed = np.zeros(vocab_size, np.bool_)
        if not self._ended:
            bits = np.frombuffer(self._matcher.compute_bitmask(), np.uint8)
            mask = np.unpackbits(bits, bitorder="little")[:vocab_size].view(np.bool_)
            allowed[: len(mask)] = mask
        may_end = self._ended or bool(allowed[list(self._own_ends)].any())
        allowed[list(self._own_ends)] = False
        allowed[list(self._ends)] = may_end
        return allowed

    def accept(self, token: int) -> None:
        """Advance by a token; a token that the grammar does not accept sets `error`."""
        if self._ended:
            return
        self._ended = token in self._ends
        self._matcher.consume_token(self._own_ends[0] if self._ended else token)

    def copy(self) -> Guide:
        """Return an independent copy."""
        other = Guide(self._matcher.deep_copy(), self._own_ends, self._ends)
        other._ended = self._ended
        return other

    def after(self, tokens: Sequence[int]) -> Guide:
        """Return an independent copy that is advanced by more tokens."""
        other = self.copy()
        for token in tokens:
            other.accept(token)
        return other


class GuideFactory:
    """Makes guides for one tokenizer, a fast one of transformers; compiled grammars are cached by their text.

    eos_ids: the model's end-of-sequence tokens; the tokenizer's if empty.
    """

    def __init__(self, tokenizer: Any, eos_ids: Ids = ()) -> None:
        self._tokenizer = tokenizer
        self._eos_ids = eos_ids or ((tokenizer.eos_token_id,) if tokenizer.eos_token_id is not None else ())
        self._wrapped: Any = None
        self._compiled: dict[str, Any] = {}

    def guide(self, params: SamplingParams, eos_ids: Ids = ()) -> Guide:
        """Return the initial guide of `params`.

        Raises SettingsError if its grammar is invalid, with the location of the fault.
        """
        assert params.guided
        return Guide(self._matcher(params, params.guided).deep_copy(), self._eos_ids[:], eos_ids or self._eos_ids)

    def _matcher(self, params: SamplingParams, name: str) -> Any:
        """Return a grammar's initial matcher, compiled once."""
        value = getattr(params, name)
        try:
            grammar = grammar_of(name, value)
            matcher = self._compiled.pop(grammar, None)
            if matcher is None or first_fault(matcher):  # an answer may have used up the budget that copies share
                matcher = self._compile(name, value, grammar)
        except GrammarError as error:
            raise_problems([Problem(str(error), name, fix_of(name, str(error)))])
        self._compiled[grammar] = matcher  # the most recently used is last
        while len(self._compiled) > _CACHED:
            del self._compiled[next(iter(self._compiled))]
        return matcher

    def _compile(self, name: str, value: Any, grammar: str) -> Any:
        matcher = self._parsed(grammar)
        if not matcher.is_error():
            if fault := first_fault(matcher):
                raise GrammarError(fault)
            return matcher
        message = fault_of(matcher)
        if name != "guided_json":
            raise GrammarError.of(message)
        path = place_of_fault(value, message, lambda part: fault_of(self._parsed(grammar_of(name, part))))
        raise GrammarError(f"`{path}`: {GrammarError.of(message)}")

    def _parsed(self, grammar: str) -> Any:
        from llguidance import LLMatcher, LLParserLimits

        # Within these limits, a grammar takes at most half a second per token on one core of 2020. The first mask
        # may use `initial_lexer_fuel`: ten times as much costs `(a{500}){1000}` 160 MiB and a second.
        limits = LLParserLimits(
            verbose_errors=False,
            step_max_items=10_000,
            max_grammar_size=5_000,
            initial_lexer_fuel=100_000,
            step_lexer_fuel=50_000,
            max_lexer_states=_MOST_STATES,
        )
        return LLMatcher(self._tokens(), grammar, log_level=0, limits=limits)

    def _tokens(self) -> Any:
        """llguidance's form of the tokenizer, built on first use (about a second)."""
        if self._wrapped is None:
            if not self._eos_ids or not getattr(self._tokenizer, "is_fast", False):
                what = "guided output needs a fast tokenizer with an end-of-sequence token"
                raise RequestError(what, "", "build the bundle from a source with `tokenizer.json`")
            from llguidance.hf import from_tokenizer

            self._wrapped = from_tokenizer(self._tokenizer, eos_token=list(self._eos_ids))
        return self._wrapped


class GrammarError(Exception):
    """A grammar that cannot be compiled."""

    @classmethod
    def of(cls, message: str) -> GrammarError:
        """Return llguidance's message in one line that starts with the location."""
        if fault := _REGEX_FAULT.search(message):
            return cls(f"`{fault['text'][:_LONGEST]}`, column {len(fault['indent']) - 3}: {fault['what']}")
        if fault := _LARK_FAULT.match(message):
            return cls(f"line {fault['line']}, column {fault['column']}: {fault['what']}")
        words = " ".join(message.split())
        return cls(words if len(words) <= _LONGEST else f"{words[:_LONGEST]}...")


def fault_of(matcher: Any) -> str:
    """Return the message of a failed matcher, without the chain of references to the fault."""
    return str(matcher.get_error()).partition("\n  while processing ")[0]


def first_fault(matcher: Any) -> str:
    """Return why no answer can follow a compiled grammar; empty if one can.

    llguidance builds its lexer with the first two masks: large counts and endless rules fail only there. A matcher
    shares the lexer with its copies, so a fault of any answer shows here, too.
    """
    trial = matcher.deep_copy()
    bits = np.frombuffer(trial.compute_bitmask(), np.uint8)
    if not trial.is_error():
        trial.consume_token(int(np.unpackbits(bits, bitorder="little").argmax()))
        if not (trial.is_error() or trial.is_stopped()):
            trial.compute_bitmask()
    fault = fault_of(trial).partition("\n")[0] if trial.is_error() else ""
    return _ENDLESS if fault.startswith("NoExtension") else fault


def fix_of(name: str, fault: str = "") -> str:
    """Return how to fix a guided_ setting that cannot be compiled."""
    if fault == _ENDLESS:
        return "give each rule or reference an alternative that ends"
    if "too many" in fault or "max is" in fault:
        return _TOO_LARGE
    return _UNSATISFIABLE if "nsatisfiable" in fault else _FIXES.get(name, "")


def grammar_of(name: str, value: Any) -> str:
    """Return the grammar of a guided_ setting. Raises GrammarError for invalid GBNF.

    Expressions match the whole answer, so a leading `^` and a trailing `$` are dropped. Text with a rule `start:` or a
    line `%llguidance` is a Lark grammar; all other text is GBNF.
    """
    from llguidance import LLMatcher

    if name == "guided_json":
        return str(LLMatcher.grammar_from_json_schema(json.dumps(value)))
    if name == "guided_regex":
        return str(LLMatcher.grammar_from_regex(_unanchored(value)))
    if name == "guided_choice":
        return str(LLMatcher.grammar_from_lark("start: " + " | ".join(json.dumps(text) for text in value)))
    return str(LLMatcher.grammar_from_lark(_lark(value)))


def _unanchored(expression: str) -> str:
    begun = expression.removeprefix("^")
    escapes = len(begun[:-1]) - len(begun[:-1].rstrip("\\"))
    return begun[:-1] if begun.endswith("$") and escapes % 2 == 0 else begun


def _lark(text: str) -> str:
    from llguidance.gbnf_to_lark import any_to_lark

    try:
        return str(any_to_lark(text))
    except Exception as error:
        # The converter raises whatever its parser raises; the message names the line.
        raise GrammarError(f"the grammar is not GBNF: {' '.join(str(error).split())}") from None


def place_of_fault(schema: Mapping[str, Any], message: str, fault: Callable[[Mapping[str, Any]], str]) -> str:
    """Return the JSON pointer of the innermost part that alone has the fault `message`; `#` is the whole schema.

    fault: returns the message with which a schema is refused, empty for a valid one. A large schema is searched in
    part.
    """
    shared = {key: schema[key] for key in _SHARED if key in schema}
    left = _MOST_READ
    try:
        for pointer, part in _innermost_first(schema, "#"):
            whole = {**shared, **part}
            left -= len(json.dumps(whole))
            if left < 0:
                break
            if pointer != "#" and fault(whole) == message:
                return pointer
    except RecursionError:
        pass  # nested too deeply to name anything but the whole schema
    return "#"


def _innermost_first(schema: Any, pointer: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    if not isinstance(schema, Mapping):
        return
    for key, part in _parts(schema):
        yield from _innermost_first(part, f"{pointer}/{key}")
    yield pointer, schema


def _parts(schema: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for key, value in schema.items():
        if key in _NAMED and isinstance(value, Mapping):
            yield from ((f"{key}/{name}", part) for name, part in value.items())
        elif key in _LISTED and isinstance(value, list):
            yield from ((f"{key}/{index}", part) for index, part in enumerate(value))
        elif key in _SINGLE:
            yield key, value
