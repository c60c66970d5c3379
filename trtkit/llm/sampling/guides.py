"""Answers that follow a JSON schema, an expression, a grammar or a choice of texts: llguidance's matchers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from trtkit.errors import Problem, RequestError
from trtkit.llm.sampling.checks import raise_problems
from trtkit.llm.sampling.grammars import GrammarError, fault_of, first_fault, fix_of, grammar_of
from trtkit.llm.sampling.subschemas import place_of_fault

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trtkit.llm.sampling.params import SamplingParams
    from trtkit.llm.sampling.words import Ids

# Grammars that are kept. Each holds up to 35 MiB: what _MOST_STATES take, and some more for the lexer's expressions.
_CACHED, _MOST_STATES = 8, 40_000


class Guide:
    """How far one answer is in its grammar.

    ends: the model's end-of-sequence tokens, each of which the grammar takes as its own.
    """

    def __init__(self, matcher: Any, own_ends: Ids, ends: Ids) -> None:
        self._matcher = matcher
        self._own_ends = own_ends
        self._ends = ends
        self._ended = False

    @property
    def error(self) -> str:
        """What the grammar could not take, else nothing."""
        return str(self._matcher.get_error()).partition("\n")[0] if self._matcher.is_error() else ""

    def allowed(self, vocab_size: int) -> np.ndarray[Any, np.dtype[np.bool_]]:
        """Return [V], whether each token may follow; where only the end may, the end-of-sequence tokens."""
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
        """Go on with a token; one that the grammar does not take is an `error` from here on."""
        if self._ended:
            return
        self._ended = token in self._ends
        self._matcher.consume_token(self._own_ends[0] if self._ended else token)

    def copy(self) -> Guide:
        """Return a guide that continues on its own."""
        other = Guide(self._matcher.deep_copy(), self._own_ends, self._ends)
        other._ended = self._ended
        return other

    def after(self, tokens: Sequence[int]) -> Guide:
        """Return a guide that continues on its own, with more tokens taken."""
        other = self.copy()
        for token in tokens:
            other.accept(token)
        return other


class GuideFactory:
    """Makes guides for one tokenizer, transformers' fast kind; what it compiled is kept by the grammar's text.

    eos_ids: the model's end-of-sequence tokens; the tokenizer's own if there are none.
    """

    def __init__(self, tokenizer: Any, eos_ids: Ids = ()) -> None:
        self._tokenizer = tokenizer
        self._eos_ids = eos_ids or ((tokenizer.eos_token_id,) if tokenizer.eos_token_id is not None else ())
        self._wrapped: Any = None
        self._compiled: dict[str, Any] = {}

    def guide(self, params: SamplingParams, eos_ids: Ids = ()) -> Guide:
        """Return the guide of `params` at its beginning.

        Raises SettingsError if it is not a grammar, with the place where it goes wrong.
        """
        assert params.guided
        return Guide(self._matcher(params, params.guided).deep_copy(), self._eos_ids[:], eos_ids or self._eos_ids)

    def _matcher(self, params: SamplingParams, name: str) -> Any:
        """Return the matcher of a grammar at its beginning, compiled once."""
        value = getattr(params, name)
        try:
            grammar = grammar_of(name, value)
            matcher = self._compiled.pop(grammar, None)
            if matcher is None or first_fault(matcher):  # an answer may have used up what its copies share
                matcher = self._compile(name, value, grammar)
        except GrammarError as error:
            raise_problems([Problem(str(error), name, fix_of(name, str(error)))])
        self._compiled[grammar] = matcher  # the latest used is the last
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

        # Grammars within these limits take half a second at most for one token, on one core of 2020. The first mask
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
        """Return llguidance's form of the tokenizer, made (about a second) when the first guide needs it."""
        if self._wrapped is None:
            if not self._eos_ids or not getattr(self._tokenizer, "is_fast", False):
                what = "guided output needs a fast tokenizer with an end-of-sequence token"
                raise RequestError(what, "", "build the bundle from a source with `tokenizer.json`")
            from llguidance.hf import from_tokenizer

            self._wrapped = from_tokenizer(self._tokenizer, eos_token=list(self._eos_ids))
        return self._wrapped
