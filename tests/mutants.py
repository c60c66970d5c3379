"""Mutation testing: plants small faults in trtkit, one at a time, and checks that tests notice. `make mutants`.

Each fault is in a statement that some test executes, according to the notes of `tests/statements.py`. The tests that
execute it run until one fails, the quickest first. The seed determines faults and their order, so that runs before and
after a change of the tests are comparable.
"""

from __future__ import annotations

import argparse
import ast
import itertools
import json
import os
import random
import signal
import sys
import time
from dataclasses import asdict, dataclass
from importlib.machinery import PathFinder, SourceFileLoader
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType

ROOT = Path(__file__).parents[1]
_OF_LLM = ("engine", "scheduler", "cache", "execution", "sampling")
PACKAGES = ("network", "models", "drafts", *(f"llm/{name}" for name in _OF_LLM))
LIMIT_S = 300
"""Limit of a mutant's tests in wall time; exceeding it counts as noticed."""
_PAIRS = (
    *((ast.Lt, ast.LtE), (ast.Gt, ast.GtE), (ast.Eq, ast.NotEq), (ast.Is, ast.IsNot), (ast.In, ast.NotIn)),
    *((ast.Add, ast.Sub), (ast.Mult, ast.Div), (ast.FloorDiv, ast.Mult), (ast.Mod, ast.FloorDiv), (ast.And, ast.Or)),
)
OTHER = dict(_PAIRS) | {other: one for one, other in _PAIRS if one is not ast.FloorDiv and one is not ast.Mod}


@dataclass(frozen=True)
class Mutant:
    """A fault: in `line` of `file`, `was` becomes `now`. start: the first line of the statement, as in the notes."""

    file: str
    start: int
    line: int
    was: str
    now: str
    source: str


@dataclass(frozen=True)
class Note:
    """The statements that a test executes, and its CPU time."""

    test: str
    cpu_s: float
    lines: dict[str, frozenset[int]]


def read_notes(folder: Path) -> list[Note]:
    """Return the notes of all processes of a run."""
    rows = [json.loads(line) for file in sorted(folder.glob("*.jsonl")) for line in file.read_text().splitlines()]
    return [
        Note(row["test"], row["cpu_s"], {file: frozenset(lines) for file, lines in row["lines"].items()})
        for row in rows
    ]


def changed(node: ast.AST) -> ast.expr | None:
    """Return an expression's replacement in a mutant; None if it is left alone."""
    result: ast.expr | None = None
    match node:
        case ast.Compare(left, [op], comparators):
            result = ast.Compare(left, [OTHER[type(op)]()], comparators)
        case ast.BinOp(left, op, right) if type(op) in OTHER:
            result = ast.BinOp(left, OTHER[type(op)](), right)
        case ast.BoolOp(op, values):
            result = ast.BoolOp(OTHER[type(op)](), values)
        case ast.UnaryOp(ast.Not(), operand):
            result = operand
        case ast.Constant(int(value)) if not isinstance(value, bool):
            result = ast.Constant(value + 1)
        case ast.Call(func, [first, second, *rest], keywords) if ast.dump(first) != ast.dump(second):
            result = ast.Call(func, [second, first, *rest], keywords)
    return result


def mutants_of(file: Path) -> Iterator[Mutant]:
    """Yield every mutant of a file's functions, except in types, error messages and assertions."""
    source = file.read_text(encoding="utf-8")
    data, name = source.encode(), str(file.relative_to(ROOT))
    starts = [0, *itertools.accumulate(map(len, data.splitlines(keepends=True)))]

    def visit(node: ast.AST, function: ast.AST | None, start: int) -> Iterator[Mutant]:
        if isinstance(node, (ast.Raise, ast.Assert, ast.JoinedStr)):
            return
        if isinstance(node, ast.stmt):
            start = node.lineno
        if function is not None and (other := changed(node)) is not None:
            assert isinstance(node, ast.expr)
            begin = starts[node.lineno - 1] + node.col_offset
            end = starts[(node.end_lineno or 0) - 1] + (node.end_col_offset or 0)
            now = f"({ast.unparse(other)})"
            mutated = (data[:begin] + now.encode() + data[end:]).decode()
            yield Mutant(name, start, node.lineno, data[begin:end].decode(), now, mutated)
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            function = node
        for field, value in ast.iter_fields(node):
            if field not in {"annotation", "returns", "decorator_list", "args" if function is node else ""}:
                for part in value if isinstance(value, list) else [value]:
                    if isinstance(part, ast.AST):
                        yield from visit(part, function, start)

    yield from visit(ast.parse(source), None, 0)


def choose(notes: list[Note], count: int, seed: int) -> list[Mutant]:
    """Return `count` mutants in executed statements; they depend only on the seed and the source tree."""
    executed: dict[str, set[int]] = {}
    for file, lines in itertools.chain.from_iterable(note.lines.items() for note in notes):
        executed.setdefault(file, set()).update(lines)
    files = [file for package in PACKAGES for file in sorted((ROOT / "trtkit" / package).rglob("*.py"))]
    every = [each for file in files for each in mutants_of(file) if each.start in executed.get(each.file, ())]
    return random.Random(seed).sample(every, min(count, len(every)))


def tests_of(mutant: Mutant, notes: list[Note], seconds: float) -> list[str]:
    """Return tests that execute a mutant's statement and take up to `seconds` together.

    Half of the time goes to the quickest, which check single values; the rest to one case per function before further
    ones.
    """
    able = sorted((note for note in notes if mutant.start in note.lines.get(mutant.file, ())), key=lambda it: it.cpu_s)
    functions: dict[str, list[Note]] = {}
    for note in able:
        functions.setdefault(note.test.partition("[")[0], []).append(note)
    in_turn = filter(None, itertools.chain.from_iterable(itertools.zip_longest(*functions.values())))
    chosen: dict[str, None] = {}
    for order in (able, in_turn):
        left = seconds / 2
        for note in order:
            if note.test not in chosen and (note.cpu_s < left or not chosen):
                chosen[note.test] = None
                left -= note.cpu_s + 0.05
    return list(chosen)


class Planted(SourceFileLoader):
    """Loads a mutant instead of a module."""

    source = b""

    def get_code(self, fullname: str) -> Any:
        return compile(self.source, self.get_filename(fullname), "exec", dont_inherit=True)


def plant(mutant: Mutant) -> None:
    """Make this process, which has not imported trtkit yet, import a mutant instead of its module."""

    class Finder:
        @staticmethod
        def find_spec(name: str, path: Sequence[str] | None = None, _: ModuleType | None = None) -> ModuleSpec | None:
            spec = PathFinder.find_spec(name, path) if name.startswith("trtkit") else None
            if spec is None or spec.origin != str(ROOT / mutant.file):
                return None
            spec.loader = Planted(name, spec.origin)
            spec.loader.source = mutant.source.encode()
            return spec

    sys.meta_path.insert(0, Finder())  # type: ignore[arg-type]


def failure(mutant: Mutant, tests: list[str], log: Path) -> str | None:
    """Return the first test that fails, or how the tests' process ended; None if all pass."""
    child = os.fork()
    if child == 0:
        os.setsid()
        with log.open("w") as file:
            os.dup2(file.fileno(), 1)
            os.dup2(file.fileno(), 2)
        plant(mutant)
        os._exit(int(pytest.main(["-x", "--tb=line", "-p", "no:cacheprovider", *tests])))
    end = time.monotonic() + LIMIT_S
    while (ended := os.waitpid(child, os.WNOHANG))[0] == 0 and time.monotonic() < end:
        time.sleep(0.05)
    if ended[0] == 0:
        os.killpg(child, signal.SIGKILL)
        os.waitpid(child, 0)
        return f"not ended after {LIMIT_S} s"
    code = os.waitstatus_to_exitcode(ended[1])
    if code == 0:
        return None
    lines = [line.split(" - ")[0] for line in log.read_text().splitlines() if line.startswith(("FAILED ", "ERROR "))]
    return lines[0] if lines else f"exit code {code}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("notes", type=Path, help="folder of the notes")
    parser.add_argument("out", type=Path, help="file for the results")
    parser.add_argument("--count", type=int, default=100, help="mutants (default: 100)")
    parser.add_argument("--seed", type=int, default=0, help="what mutants are drawn with (default: 0)")
    parser.add_argument("--seconds", type=float, default=30.0, help="of tests for each mutant (default: 30)")
    options = parser.parse_args()
    import torch
    import transformers  # noqa: F401 - as children need not import it then

    torch.set_num_threads(1)
    notes, results = read_notes(options.notes), []
    for mutant in choose(notes, options.count, options.seed):
        tests = tests_of(mutant, notes, options.seconds)
        seen = failure(mutant, tests, options.out.with_suffix(".log"))
        row = {name: value for name, value in asdict(mutant).items() if name not in {"source", "start"}}
        results.append(row | {"tests": len(tests), "seen_by": seen})
        verdict = "noticed" if seen else "NOT SEEN"
        print(f"{verdict} {mutant.file}:{mutant.line}: {mutant.was} -> {mutant.now}", flush=True)
        noticed = sum(each["seen_by"] is not None for each in results)
        summary = {"seed": options.seed, "mutants": len(results), "noticed": noticed, "results": results}
        options.out.write_text(json.dumps(summary, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
