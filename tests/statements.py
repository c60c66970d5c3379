"""Records which statements of `trtkit/` each test executes: `pytest -p tests.statements --statements FOLDER`.

Modules are rewritten on import to set a flag before each statement, which is cheap enough to measure times as well.
Child processes are not recorded.
"""

from __future__ import annotations

import ast
import json
import os
import sys
from importlib.machinery import PathFinder, SourceFileLoader
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from importlib.machinery import ModuleSpec
    from types import CodeType, ModuleType

PACKAGE = Path(__file__).parents[1] / "trtkit"
FLAGS = "__executed__"
"""Name of a module's array of flags, one per statement."""
_BODIES = ("body", "orelse", "finalbody")
_TREES = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def marked(tree: ast.Module) -> list[int]:
    """Set a flag before every statement of a module; return the statements' lines."""
    lines: list[int] = []

    def with_flags(body: list[ast.stmt], *, has_docstring: bool) -> list[ast.stmt]:
        result: list[ast.stmt] = []
        for index, statement in enumerate(body):
            is_docstring = has_docstring and index == 0 and _is_text(statement)
            if not is_docstring and not _is_future(statement):
                flag = ast.parse(f"{FLAGS}[{len(lines)}] = 1").body[0]
                lines.append(statement.lineno)
                result.append(ast.fix_missing_locations(ast.copy_location(flag, statement)))
            visit(statement)
            result.append(statement)
        return result

    def visit(node: ast.AST) -> None:
        for name in _BODIES:
            body = getattr(node, name, None)
            if isinstance(body, list):
                setattr(node, name, with_flags(body, has_docstring=isinstance(node, _TREES)))
        for part in (*getattr(node, "handlers", ()), *getattr(node, "cases", ())):
            visit(part)

    visit(tree)
    return lines


def _is_text(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)


def _is_future(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.ImportFrom) and statement.module == "__future__"


class Watched(SourceFileLoader):
    """Loads a module with flags. modules: lines and flags of all loaded modules, by path."""

    modules: dict[str, tuple[list[int], bytearray]] = {}  # noqa: RUF012 - shared by all loaders on purpose

    def get_code(self, fullname: str) -> CodeType:
        path = self.get_filename(fullname)
        tree = ast.parse(self.get_data(path), path)
        lines = marked(tree)
        self.modules[path] = lines, bytearray(len(lines))
        return compile(tree, path, "exec", dont_inherit=True)

    def exec_module(self, module: ModuleType) -> None:
        code = self.get_code(module.__name__)
        vars(module)[FLAGS] = self.modules[self.get_filename(module.__name__)][1]
        exec(code, vars(module))


class Finder:
    """Finds modules of trtkit, ahead of Python's own finder."""

    @staticmethod
    def find_spec(name: str, path: Sequence[str] | None = None, target: ModuleType | None = None) -> ModuleSpec | None:
        if not name.startswith("trtkit"):
            return None
        spec = PathFinder.find_spec(name, path, target)
        if spec is not None and isinstance(spec.loader, SourceFileLoader) and PACKAGE in Path(spec.loader.path).parents:
            spec.loader = Watched(spec.loader.name, spec.loader.path)
        return spec


def take(root: Path) -> dict[str, list[int]]:
    """Return the lines of statements that ran since the last call, by file path."""
    executed = {}
    for path, (lines, flags) in Watched.modules.items():
        if any(flags):
            executed[str(Path(path).relative_to(root))] = sorted({lines[i] for i, flag in enumerate(flags) if flag})
            flags[:] = bytes(len(flags))
    return executed


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--statements", type=Path, required=True, help="Folder for a file of each process.")


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests() -> None:
    """Record imports from now on, before conftest imports trtkit."""
    assert "trtkit" not in sys.modules
    sys.meta_path.insert(0, Finder())  # type: ignore[arg-type]


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[Any]:
    """Write a test's CPU time and statements as a line of JSON."""
    before = sum(os.times()[:4])
    result = yield
    note = {"test": item.nodeid, "cpu_s": round(sum(os.times()[:4]) - before, 3), "lines": take(item.config.rootpath)}
    folder: Path = item.config.getoption("--statements")
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / f"{os.getpid()}.jsonl").open("a", encoding="utf-8") as file:
        file.write(json.dumps(note) + "\n")
    return result
