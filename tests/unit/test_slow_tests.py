"""The list of tests that only `make slow` runs names tests that exist."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

from tests.selection import is_listed, listed

ROOT = Path(__file__).parents[2]


@cache
def _functions(file: str) -> set[str]:
    """Return the names of a file's tests."""
    tree = ast.parse((ROOT / file).read_text(encoding="utf-8"))
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}


def test_every_line_names_a_test() -> None:
    missing = []
    for line in listed():
        file, *_, test = line.partition("[")[0].split("::")
        if not (ROOT / file).is_file() or test not in _functions(file):
            missing.append(line)
    assert missing == []


def test_cases_are_listed_only_if_others_of_their_test_run() -> None:
    """A test without parameters in the list stands for all of its cases."""
    assert [line for line in listed() if "[" in line and line.partition("[")[0] in listed()] == []


def test_a_test_that_is_new_runs_every_time() -> None:
    assert not is_listed("tests/unit/test_slow_tests.py::test_a_test_that_is_new_runs_every_time")
