"""Stop strings are found where a search of the whole text finds them, however the text is cut into pieces."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trtkit.runtime.text import StopStrings

if TYPE_CHECKING:
    from collections.abc import Sequence


def whole_search(text: str, stop: Sequence[str], include: bool) -> tuple[str, str | None]:
    """Return the text up to the stop string that is complete first, the longest of several, and that string."""
    for end in range(1, len(text) + 1):
        found = [one for one in stop if text[:end].endswith(one)]
        if found:
            longest = max(found, key=len)
            return text[: end if include else end - len(longest)], longest
    return text, None


@given(
    parts=st.lists(st.text("abc", max_size=4), max_size=12),
    stop=st.lists(st.text("abc", min_size=1, max_size=4), max_size=4),
    include=st.booleans(),
)
def test_streamed_stop_is_the_whole_texts(parts: list[str], stop: list[str], include: bool) -> None:
    watch = StopStrings(stop, include)
    pieces = [watch.add(part) for part in parts]
    pieces.append(watch.finish())
    assert ("".join(pieces), watch.matched) == whole_search("".join(parts), stop, include)


@given(
    text=st.text("ab\n", max_size=20), stop=st.lists(st.text("ab\n", min_size=1, max_size=3), min_size=1, max_size=3)
)
def test_only_what_may_begin_a_stop_string_is_held_back(text: str, stop: list[str]) -> None:
    watch, given = StopStrings(stop), ""
    for end, char in enumerate(text, 1):
        given += watch.add(char)
        if watch.matched is not None:
            return
        held = text[len(given) : end]
        assert held == "" or any(one.startswith(held) for one in stop)


def test_a_stop_string_over_several_pieces_is_cut() -> None:
    watch = StopStrings(["<END>", "\n\n"])
    assert [watch.add(piece) for piece in ["Hi <", "E", "N", "T <E", "ND> more", "x"]] == [
        "Hi ",
        "",
        "",
        "<ENT ",
        "",
        "",
    ]
    assert watch.matched == "<END>"
    assert watch.finish() == ""


@pytest.mark.parametrize(("include", "text"), [(False, "a"), (True, "a.")])
def test_the_stop_string_itself_is_kept_on_request(include: bool, text: str) -> None:
    assert StopStrings(["."], include).add("a. b") == text


def test_what_was_held_comes_at_the_end() -> None:
    watch = StopStrings(["world"])
    assert watch.add("hello wor") == "hello "
    assert watch.finish() == "wor"
    assert watch.matched is None


def test_without_stop_strings_nothing_is_held() -> None:
    assert re.fullmatch("abc", StopStrings(()).add("abc"))
