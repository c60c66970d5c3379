"""Grammars in the form llguidance compiles."""

from __future__ import annotations

import json
from typing import Any

_FIXES = {
    "guided_json": "see the keywords that llguidance supports: https://github.com/guidance-ai/llguidance",
    "guided_regex": "use the syntax of Rust's `regex` without look-around and back-references",
    "guided_grammar": "a Lark grammar has a rule `start:`, a GBNF grammar `root ::=`",
}


class GrammarError(Exception):
    """A grammar that cannot be compiled."""

    @classmethod
    def of(cls, message: str) -> GrammarError:
        """Return llguidance's own message, which names the place, in one line."""
        return cls(" ".join(message.split()))


def grammar_of(name: str, value: Any) -> str:
    """Return the grammar of a guided_ setting. Raises GrammarError for what is no grammar.

    Expressions match the whole answer, so `^` before and `$` behind them are left out. Text with a rule `start:` or a
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
    ended = begun.endswith("$") and (len(begun) - len(begun[:-1].rstrip("\\"))) % 2 == 1
    return begun[:-1] if ended else begun


def _lark(text: str) -> str:
    from llguidance.gbnf_to_lark import any_to_lark

    try:
        return str(any_to_lark(text))
    except Exception as error:
        # The converter raises whatever its parser does; its message names the line.
        raise GrammarError.of(f"the grammar is not GBNF: {error}") from None


def fix_of(name: str) -> str:
    """Return what to do about a guided_ setting that cannot be compiled."""
    return _FIXES.get(name, "")
