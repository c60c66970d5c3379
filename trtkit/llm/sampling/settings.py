"""The resolved settings of one sequence: words as token ids, end tokens, and a seed of its own."""

from __future__ import annotations

import secrets
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from trtkit.errors import Problem, RequestError
from trtkit.llm.sampling.checks import raise_problems

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from trtkit.llm.sampling.guides import Guide, GuideFactory
    from trtkit.llm.sampling.params import Ids, SamplingParams, Word


@dataclass(frozen=True)
class Vocabulary:
    """What settings are resolved against.

    size: V, the number of logits. eos_ids: the model's end-of-sequence tokens. encode: text to token ids without
    special tokens. guides: compiles grammars. Both None without a tokenizer.
    """

    size: int
    eos_ids: Ids = ()
    encode: Callable[[str], Sequence[int]] | None = None
    guides: GuideFactory | None = None

    def spellings(self, word: Word) -> tuple[Ids, ...]:
        """Return the token ids of a word; a text has two, as it is and after a space, which byte-level BPE tells apart.

        Raises ValueError if the text has no tokens.
        """
        if not isinstance(word, str):
            return (word,)
        if self.encode is None:
            raise ValueError(f"`{word}` is text, which the bundle has no tokenizer to encode")
        encodings = {tuple(int(token) for token in self.encode(text)): None for text in (word, f" {word}")}
        spellings = tuple(ids for ids in encodings if ids)
        if not spellings:
            raise ValueError(f"`{word}` has no tokens")
        return spellings


@dataclass(frozen=True)
class Settings:
    """SamplingParams resolved for one sequence.

    seed: of its draws. eos_ids: the model's end-of-sequence tokens. bad_words: banned token sequences. force_words:
    each word's spellings, one of which must occur. guide: in its initial state; slots take copies.
    """

    params: SamplingParams
    seed: int
    eos_ids: Ids = ()
    bad_words: tuple[Ids, ...] = ()
    force_words: tuple[tuple[Ids, ...], ...] = ()
    guide: Guide | None = None

    @property
    def stop_ids(self) -> Ids:
        """Every token that ends the sequence: `stop_token_ids`, and the model's own unless `ignore_eos`."""
        eos_ids = () if self.params.ignore_eos else self.eos_ids
        return tuple(dict.fromkeys((*eos_ids, *self.params.stop_token_ids)))

    @classmethod
    def resolve(cls, params: SamplingParams, vocabulary: Vocabulary) -> Settings:
        """Return the settings of the first answer. Raises SettingsError for invalid words, tokens and guides.

        All slow work is done here: tokenizing words and compiling a guide.

        Text in word lists has two spellings: as it is, and after a space. A bad word is banned in both; a forced word
        may occur in either.
        """
        problems: list[Problem] = []
        bad = tuple(ids for word in _spelled(params, "bad_words", vocabulary, problems) for ids in word)
        force = tuple(_spelled(params, "force_words", vocabulary, problems))
        problems += [*_outside(params, vocabulary.size), *_without_end(params, vocabulary)]
        need = sum(min(map(len, spellings)) for spellings in force)
        if need > params.max_tokens:
            what = f"the words need {need} tokens; `max_tokens` is {params.max_tokens}"
            problems.append(Problem(what, "force_words", "raise `max_tokens`, or force fewer words"))
        raise_problems(problems)
        guide = _guide(params, vocabulary)
        return cls(params, sequence_seed(params.seed, 0), vocabulary.eos_ids, bad, force, guide)

    def of_answer(self, index: int) -> Settings:
        """Return the settings of answer `index` of `params.n`: the same, with a seed of its own."""
        return replace(self, seed=sequence_seed(self.params.seed, index))


def sequence_seed(seed: int | None, index: int) -> int:
    """Return the seed of answer `index`: `seed` itself for the first one, a hash of both for the others."""
    if seed is None:
        return secrets.randbits(64)
    if index == 0:
        return seed
    return int(np.random.SeedSequence([seed, index]).generate_state(1, np.uint64)[0])


def _guide(params: SamplingParams, vocabulary: Vocabulary) -> Guide | None:
    """Return the guide of the answer; None if there is none. Raises RequestError if it cannot be compiled."""
    if not params.guided:
        return None
    if vocabulary.guides is None:
        raise RequestError("guided output needs a tokenizer; the bundle has none", params.guided)
    return vocabulary.guides.guide(params, vocabulary.eos_ids)


def _spelled(
    params: SamplingParams, name: str, vocabulary: Vocabulary, problems: list[Problem]
) -> Iterator[tuple[Ids, ...]]:
    for word in getattr(params, name):
        try:
            yield vocabulary.spellings(word)
        except ValueError as error:
            problems.append(Problem(str(error), name, "give token ids: `[[15, 27]]`"))


def _outside(params: SamplingParams, size: int) -> Iterator[Problem]:
    """Report token ids that the model does not have."""
    lists = {
        "stop_token_ids": params.stop_token_ids,
        "logit_bias": tuple(params.logit_bias),
        "bad_words": _token_ids(params.bad_words),
        "force_words": _token_ids(params.force_words),
    }
    for name, ids in lists.items():
        wrong = [token for token in ids if token >= size]
        if wrong:
            what = f"token {', '.join(map(str, wrong[:3]))} is not in the vocabulary, which ends at {size - 1}"
            yield Problem(what, name, "give token ids of this model's tokenizer")


def _token_ids(words: tuple[Word, ...]) -> list[int]:
    return [token for word in words if not isinstance(word, str) for token in word]


def _without_end(params: SamplingParams, vocabulary: Vocabulary) -> Iterator[Problem]:
    if params.guided and not vocabulary.eos_ids:
        what = "guided output needs an end-of-sequence token, and the model defines none"
        yield Problem(what, params.guided, "define it in the tokenizer or in `generation_config.json`")
