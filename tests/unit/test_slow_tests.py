"""The list of tests that only `make slow` runs names tests that exist."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

from tests.choose import chosen, left_out
from tests.mutants import Note
from tests.selection import as_text, is_listed, listed, node_ids

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


def test_a_list_is_read_as_it_is_written() -> None:
    tests = ["a.py::one", "a.py::two[1, x::y]", "a.py::two[2[3]]", "b.py::Kind::one", "b.py::two[]"]
    assert node_ids(f"# head\n{as_text(reversed(tests))}") == tests
    assert as_text(tests[:2]) == "a.py\n one\n two\n  1, x::y\n"


def test_a_test_that_is_new_runs_every_time() -> None:
    assert not is_listed("tests/unit/test_slow_tests.py::test_a_test_that_is_new_runs_every_time")


def note(test: str, cpu_s: float, *lines: int) -> Note:
    return Note(test, cpu_s, {"trtkit/a.py": frozenset(lines)})


def test_the_chosen_tests_execute_all_statements_in_less_time() -> None:
    notes = [
        note("a.py::quick", 0.1, 1),
        note("a.py::cases[small]", 0.5, 1, 2),
        note("a.py::cases[large]", 5.0, 1, 2),
        note("a.py::other", 9.0, 1, 2),
        note("b.py::long", 8.0, 3),
        note("b.py::longer", 20.0, 1, 3),
    ]
    names = chosen(notes, 0.0)
    assert names == {"a.py::quick", "a.py::cases[small]", "b.py::long"}
    assert left_out(notes, names, frozenset()) == ["a.py::cases[large]", "a.py::other", "b.py::longer"]
    assert chosen(notes, 14.0) == names | {"a.py::cases[large]"}


def test_tests_without_notes_stay_in_the_list() -> None:
    notes = [note("a.py::cases[1]", 2.0, 1), note("a.py::cases[2]", 3.0, 1), note("b.py::test", 1.0, 1)]
    before = frozenset({"servers.py::test", "a.py::cases[3]", "b.py::test"})
    assert left_out(notes, {"a.py::cases[1]", "b.py::test"}, before) == [
        "a.py::cases[2]",
        "a.py::cases[3]",
        "servers.py::test",
    ]
    assert left_out(notes, {"b.py::test"}, before) == ["a.py::cases", "servers.py::test"]
