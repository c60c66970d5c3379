"""Grammars in the form llguidance compiles, and what its messages say about those it cannot."""

from __future__ import annotations

import json
import re
from typing import Any

import numpy as np

_FIXES = {
    "guided_json": "leave out what llguidance lacks: github.com/guidance-ai/llguidance/blob/main/docs/json_schema.md",
    "guided_regex": "use the syntax of Rust's `regex`, without look-around and back-references",
    "guided_grammar": "a Lark grammar has a rule `start:`, a GBNF grammar `root ::=`",
}
_UNSATISFIABLE = "change the schema: no JSON value satisfies it, so no answer could"
_ENDLESS = "a rule or reference leads only to itself, so no answer can begin"
_TOO_LARGE = "simplify it: lower counts such as `{1000}`, or use `*` or `+` in their stead"
_LONGEST = 300  # characters of a message
# Where the expression is shown, with a mark below the fault; where a line and a column lead the message.
_REGEX_FAULT = re.compile(r"regex parse error:\n    (?P<text>.*)\n(?P<indent> *)\^+\nerror: (?P<what>.*)")
_LARK_FAULT = re.compile(r"^(?:at )?(?P<line>\d+)\((?P<column>\d+)\): (?P<what>.*)")


class GrammarError(Exception):
    """A grammar that cannot be compiled."""

    @classmethod
    def of(cls, message: str) -> GrammarError:
        """Return llguidance's message in one line that begins with the place."""
        if fault := _REGEX_FAULT.search(message):
            return cls(f"`{fault['text'][:_LONGEST]}`, column {len(fault['indent']) - 3}: {fault['what']}")
        if fault := _LARK_FAULT.match(message):
            return cls(f"line {fault['line']}, column {fault['column']}: {fault['what']}")
        words = " ".join(message.split())
        return cls(words if len(words) <= _LONGEST else f"{words[:_LONGEST]}...")


def fault_of(matcher: Any) -> str:
    """Return the message of a matcher that has failed, without the references that led to the fault."""
    return str(matcher.get_error()).partition("\n  while processing ")[0]


def first_fault(matcher: Any) -> str:
    """Return why no answer can follow a compiled grammar, nothing if one can.

    llguidance builds what its lexer needs with the first two masks: large counts and endless rules fail only there.
    A matcher shares that with its copies, so a fault of any answer shows here too.
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
    """Return what to do about a guided_ setting that cannot be compiled."""
    if fault == _ENDLESS:
        return "give each rule or reference an alternative that ends"
    if "too many" in fault or "max is" in fault:
        return _TOO_LARGE
    return _UNSATISFIABLE if "nsatisfiable" in fault else _FIXES.get(name, "")


def grammar_of(name: str, value: Any) -> str:
    """Return the grammar of a guided_ setting. Raises GrammarError for GBNF that cannot be read.

    Expressions match the whole answer, so `^` before and `$` after them are left out. Text with a rule `start:` or a
    line `%llguidance` is a Lark grammar; all other is GBNF.
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
        # The converter raises whatever its parser does; its message names the line.
        raise GrammarError(f"the grammar is not GBNF: {' '.join(str(error).split())}") from None
