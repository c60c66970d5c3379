"""Chooses which tests run every time, from what each one executes and costs: `python -m tests.choose NOTES`.

NOTES is the output of `tests/statements.py` for a run of all tests that are not marked slow in their files, `-m "(not
slow or listed) and not conformance"`. A test runs every time if it is one of `ALWAYS`, if it is the quickest case of
its function and takes up to a second, or if it is needed to execute every statement that any test executes. The
quickest of the others fill the budget. The rest is written to `tests/slow_tests.txt`, which `tests/conftest.py` marks
slow. Tests outside the list, such as new ones, run every time; lines of the list whose tests have no notes are kept.
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING

from tests.mutants import read_notes
from tests.selection import LIST, as_text, listed

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tests.mutants import Note

CASE_S = 1.0
"""CPU seconds up to which the quickest case of each function runs every time."""
ALWAYS = (
    "tests/unit/test_slow_tests.py",
    "tests/unit/test_structure.py",
    "tests/unit/test_words.py",
    "tests/integration/test_decoder_parity.py::test_the_network_builds",
    "tests/integration/test_decoder_parity.py::test_fp32_logits_of_every_step_are_those_of_transformers",
    "tests/integration/test_decoder_parity.py::test_16_bit_logits_are_those_of_transformers_to_rounding",
)
"""Rules that execute nothing of trtkit; what TensorRT builds, which coverage does not show; each family's logits in
fp32, in one call and in steps, and in fp16."""
_HEAD = """\
# What `make slow` runs and `make test` does not: other tests execute the same statements in less time. Written by
# `python -m tests.choose`, which says how. Below each file its tests, below each test its cases; all if none is named.
"""


def chosen(notes: list[Note], seconds: float) -> set[str]:
    """Return the tests that run every time. seconds: their total budget of CPU time."""
    by_time = sorted(notes, key=lambda note: note.cpu_s)
    quickest: dict[str, Note] = {}
    for note in by_time:
        quickest.setdefault(_function(note.test), note)
    names = {note.test for note in quickest.values() if note.cpu_s <= CASE_S}
    names |= {note.test for note in notes if note.test.startswith(ALWAYS)}
    covered = _statements(note for note in notes if note.test in names)
    names |= {note.test for note in _covering([note for note in notes if note.test not in names], covered)}
    seconds -= sum(note.cpu_s for note in notes if note.test in names)
    for note in by_time:
        if note.test not in names and note.cpu_s < seconds:
            names.add(note.test)
            seconds -= note.cpu_s
    return names


def _function(test: str) -> str:
    return test.partition("[")[0]


def _statements(notes: Iterable[Note]) -> set[tuple[str, int]]:
    return {(file, line) for note in notes for file, lines in note.lines.items() for line in lines}


def _covering(notes: list[Note], covered: set[tuple[str, int]]) -> list[Note]:
    """Return few notes that execute every statement not in `covered`, greedily by statements per second."""
    missing = {note.test: _statements([note]) - covered for note in notes}
    by_test, needed = {note.test: note for note in notes}, []
    while any(missing.values()):
        best = max(missing, key=lambda test: len(missing[test]) / (by_test[test].cpu_s + 0.01))
        gained = missing.pop(best)
        needed.append(by_test[best])
        for statements in missing.values():
            statements.difference_update(gained)
    return needed


def left_out(notes: list[Note], names: set[str], before: frozenset[str]) -> list[str]:
    """Return the lines of the list: tests that are not in `names`; the function alone if none of its cases is.

    before: the previous list's lines; those whose tests have no notes are kept.
    """
    cases: dict[str, set[str]] = defaultdict(set)
    for test in [note.test for note in notes] + [line for line in before if "[" in line]:
        cases[_function(test)].add(test)
    lines = {line for line in before if "[" not in line and line not in cases}
    for function, tests in cases.items():
        lines |= tests - names if tests & names else {function}
    return sorted(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("notes", type=Path, help="folder of the notes")
    parser.add_argument("--seconds", type=float, default=850.0, help="of processor time every time (default: 850)")
    options = parser.parse_args()
    notes = read_notes(options.notes)
    names = chosen(notes, options.seconds)
    LIST.write_text(_HEAD + as_text(left_out(notes, names, listed())), encoding="utf-8")
    before = sum(note.cpu_s for note in notes)
    after = sum(note.cpu_s for note in notes if note.test in names)
    print(f"{len(names)} of {len(notes)} tests run every time, {after:.0f} s of {before:.0f} s of processor time")


if __name__ == "__main__":
    main()
