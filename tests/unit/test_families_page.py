"""The page of decoder families has every family with all of its cases, and errors that are within their limits."""

from __future__ import annotations

import re

from tests.families import PAGE, cases

_ROW = re.compile(r"\| `([\w-]+)` \| `\w+` \| (\d+) \| (\S+) \| \S+ \| (\d+) \|")


def test_the_page_has_all_cases() -> None:
    rows = {name: int(count) for name, count, _, _ in _ROW.findall(PAGE.read_text(encoding="utf-8"))}
    assert rows == {name: len(own) for name, own in cases().items()}, "run `python -m tests.families`"


def test_its_errors_are_within_the_limits() -> None:
    for name, count, error, greedy in _ROW.findall(PAGE.read_text(encoding="utf-8")):
        assert float(error) <= 2e-5, name
        assert greedy == count, name
