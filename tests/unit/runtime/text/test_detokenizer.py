"""Streamed pieces are the text of all tokens, whatever the tokenizer's kind; no piece breaks a character."""

from __future__ import annotations

import re
from functools import cache
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.runtime.text.tokenizers import KINDS, SPECIAL
from trtkit.runtime.text import IncrementalDetokenizer, Tokenizer

if TYPE_CHECKING:
    from collections.abc import Sequence

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=40) | st.text(
    st.sampled_from("ab  Gravity is\n日本👩‍👧𐍈e\u0301<0x0A>"), max_size=40
)


@cache
def tokenizer_of(kind: str) -> Tokenizer:
    return KINDS[kind]()


def pieces(
    tokenizer: Tokenizer, ids: Sequence[int], prompt: Sequence[int] = (), skip: bool = True, size: int = 1
) -> list[str]:
    """Return what comes out, `size` tokens at a time, the rest last."""
    stream = IncrementalDetokenizer(tokenizer, prompt, skip)
    found = [stream.add(ids[start : start + size]) for start in range(0, len(ids), size)]
    return [*found, stream.finish()]


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=150, deadline=None)
@given(text=TEXTS, size=st.integers(1, 4))
def test_pieces_of_a_text_are_its_decoding(kind: str, text: str, size: int) -> None:
    tokenizer = tokenizer_of(kind)
    ids = tokenizer.encode(text)
    found, whole = pieces(tokenizer, ids, size=size), tokenizer.decode(ids)
    assert "".join(found) == whole
    assert "\ufffd" in whole or not any("\ufffd" in piece for piece in found)


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=150, deadline=None)
@given(data=st.data(), skip=st.booleans(), size=st.integers(1, 4))
def test_pieces_of_any_tokens_are_their_decoding(kind: str, data: st.DataObject, skip: bool, size: int) -> None:
    tokenizer = tokenizer_of(kind)
    ids = data.draw(st.lists(st.integers(0, tokenizer.vocab_size + 3), max_size=30))
    found, whole = pieces(tokenizer, ids, skip=skip, size=size), tokenizer.decode(ids, skip)
    if kind == "llama_like":
        assert same_but_for_broken_runs("".join(found), whole)
    else:
        assert "".join(found) == whole
    assert "\ufffd" in whole or not any("\ufffd" in piece for piece in found)


def same_but_for_broken_runs(found: str, whole: str) -> bool:
    """Whether `found` keeps characters at most where `whole` replaces all bytes of a run."""
    pattern = "".join(f"(?:.{{0,{len(part)}}})" if part[0] == "\ufffd" else re.escape(part) for part in runs(whole))
    return re.fullmatch(pattern, found, re.DOTALL) is not None


def runs(text: str) -> list[str]:
    return re.findall("\ufffd+|[^\ufffd]+", text)


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=100, deadline=None)
@given(prompt=TEXTS, answer=TEXTS)
def test_an_answers_text_is_what_it_adds_to_the_prompts(kind: str, prompt: str, answer: str) -> None:
    tokenizer = tokenizer_of(kind)
    first, ids = tokenizer.encode(prompt), tokenizer.encode(answer)
    expected = tokenizer.decode(first + ids).removeprefix(tokenizer.decode(first))
    assert "".join(pieces(tokenizer, ids, first)) == expected


def test_a_character_comes_whole_with_the_token_that_completes_it() -> None:
    tokenizer = tokenizer_of("byte_level")
    ids = tokenizer.encode("𐍈x")
    assert len(ids) == 5
    assert pieces(tokenizer, ids) == ["", "", "", "𐍈", "x", ""]
    assert pieces(tokenizer, ids[2:], ids[:2]) == ["", "𐍈", "x", ""]


def test_a_sentencepiece_answer_keeps_the_space_that_follows_the_prompt() -> None:
    tokenizer = tokenizer_of("llama_like")
    prompt, answer = tokenizer.encode("The capital is"), tokenizer.encode("Paris")
    assert "".join(pieces(tokenizer, answer, prompt)) == " Paris"
    assert "".join(pieces(tokenizer, answer)) == "Paris"


def test_a_skipped_special_token_does_not_take_the_space_behind_it() -> None:
    tokenizer = tokenizer_of("llama_like")
    end = tokenizer.token_id(SPECIAL[1])
    assert end is not None
    ids = [*tokenizer.encode("Rome"), end, *tokenizer.encode("Paris")]
    assert "".join(pieces(tokenizer, ids)) == tokenizer.decode(ids) == "Rome Paris"
    assert "".join(pieces(tokenizer, ids, skip=False)) == tokenizer.decode(ids, False) == "Rome<|im_end|> Paris"


def test_a_newline_of_a_byte_token_is_given_at_once() -> None:
    tokenizer = tokenizer_of("llama_like")
    ids = tokenizer.encode("a\nb")
    assert "".join(pieces(tokenizer, ids)[:-2]) == "a\n"


@pytest.mark.parametrize("kind", ["byte_level", "llama_like"])
def test_invalid_bytes_at_the_end_come_out_as_replacements(kind: str) -> None:
    tokenizer = tokenizer_of(kind)
    whole = tokenizer.encode("a日")
    found = pieces(tokenizer, whole[:-1])
    assert "".join(found[:-1]) == "a"
    assert found[-1] == "\ufffd"


def test_nothing_is_held_of_a_prompt_that_gets_no_answer() -> None:
    tokenizer = tokenizer_of("byte_level")
    stream = IncrementalDetokenizer(tokenizer, tokenizer.encode("日")[:-1])
    assert stream.finish() == ""


def test_no_tokenizer_no_text() -> None:
    stream = IncrementalDetokenizer(None, [1, 2])
    assert stream.add([3, 4]) + stream.finish() == ""


@pytest.mark.parametrize("kind", ["byte_level", "llama_like", "word_piece"])
def test_work_per_token_does_not_grow(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer = tokenizer_of(kind)
    ids = tokenizer.encode("日" if kind == "llama_like" else "Gravity")
    stream = IncrementalDetokenizer(tokenizer, tokenizer.encode("a"))
    decoded: list[int] = []
    decode = Tokenizer.decode

    def counted(self: Tokenizer, tokens: Sequence[int], **settings: bool) -> str:
        decoded.append(len(tokens))
        return decode(self, tokens, **settings)

    monkeypatch.setattr(Tokenizer, "decode", counted)
    work = []
    for _ in range(2):
        decoded.clear()
        for _ in range(300):
            stream.add(ids[-1:])
        work.append(sum(decoded))
    assert work[0] == work[1]
