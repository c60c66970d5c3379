from __future__ import annotations

import pytest

from trtkit.verification.evaluation import QUESTIONS, holds_one_of


@pytest.mark.parametrize(
    ("text", "words", "expected"),
    [
        ("The capital of France is paris.", ("Paris",), True),
        ("Parisian", ("Paris",), False),
        ("Water freezes at 0 degrees.", ("0",), True),
        ("Water boils at 100 degrees.", ("0",), False),
        ("It is 4.", ("four", "4"), True),
        ("", ("Au",), False),
    ],
)
def test_an_answer_is_right_where_a_word_stands_in_it(text: str, words: tuple[str, ...], expected: bool) -> None:
    assert holds_one_of(text, words) is expected


def test_no_question_holds_its_own_answer() -> None:
    assert not any(holds_one_of(question, words) for question, words in QUESTIONS)
