"""Selects which cases of a test run every time, and which only in `make slow`."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

LIST = Path(__file__).with_name("slow_tests.txt")
"""Tests and cases that only `make slow` runs, since others cover their statements; from `python -m tests.choose`."""


def slow_unless(is_kept: Callable[..., bool], cases: Iterable[Any]) -> list[Any]:
    """Return a test's parameters, marked slow unless `is_kept`. A tuple is several parameters, as in pytest."""
    marked = []
    for case in cases:
        values = case if isinstance(case, tuple) else (case,)
        marked.append(case if is_kept(*values) else pytest.param(*values, marks=pytest.mark.slow))
    return marked


@cache
def listed() -> frozenset[str]:
    """Return the node IDs in `LIST`; one without parameters means all cases of its test."""
    return frozenset(node_ids(LIST.read_text(encoding="utf-8")))


def node_ids(text: str) -> list[str]:
    """Parse a list of tests: each file is followed by its tests, each test by the parameters of its cases."""
    tests, file, test = list[str](), "", ""
    for line in text.splitlines():
        name = line.lstrip(" ")
        depth = len(line) - len(name)
        if depth == 2:
            tests[-1:] = [] if tests[-1:] == [f"{file}::{test}"] else tests[-1:]
            tests.append(f"{file}::{test}[{name}]")
        elif depth == 1:
            test = name
            tests.append(f"{file}::{test}")
        elif name and not name.startswith("#"):
            file = name
    return tests


def as_text(tests: Iterable[str]) -> str:
    """Return tests in the format that `node_ids` reads."""
    lines, file, test = list[str](), "", ""
    for node in sorted(tests):
        function, bracket, case = node.partition("[")
        of_file, name = function.split("::", 1)
        if of_file != file:
            lines.append(of_file)
        if (of_file, name) != (file, test):
            lines.append(f" {name}")
        if bracket:
            lines.append(f"  {case[:-1]}")
        file, test = of_file, name
    return "".join(f"{line}\n" for line in lines)


def is_listed(nodeid: str) -> bool:
    """Whether `LIST` leaves a test, or this case of it, to `make slow`."""
    return nodeid in listed() or nodeid.partition("[")[0] in listed()
