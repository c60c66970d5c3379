"""What the tree may hold at most; whoever lowers a number writes the new one here."""

from __future__ import annotations

import ast
import graphlib
import re
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import trtkit
from trtkit.models.speculators import known_kinds

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(trtkit.__file__).parent
# TensorRT, torch and onnx have no types to speak of: what holds their objects says Any.
BOUNDARY = {"backends", "network", "reference"}
MOST_ANY, MOST_JSON = 728, 57
MOST_LINES_OF_A_FILE, MOST_LINES_OF_A_FUNCTION = 600, 60
# Words that do not say what a variable, a parameter, a field or a function is.
VAGUE, MOST_VAGUE = {"found", "made", "asked", "given", "said"}, 10


@cache
def _nodes(path: Path) -> tuple[ast.AST, ...]:
    """Return every node of a file's syntax tree, which several tests read."""
    return tuple(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))


def _names(name: str) -> int:
    """Return how often annotations and aliases outside the boundary say `name`."""
    count = 0
    for path in ROOT.rglob("*.py"):
        if path.relative_to(ROOT).parts[0] not in BOUNDARY:
            count += sum(isinstance(node, ast.Name) and node.id == name for node in _nodes(path))
    return count


def test_any_becomes_rarer() -> None:
    """Name the type, or make a dataclass for it."""
    assert _names("Any") <= MOST_ANY


def test_data_without_a_type_becomes_rarer() -> None:
    """Give the data a dataclass; `trtkit.jobs.json_form` makes JSON of it."""
    assert _names("Json") <= MOST_JSON


def test_files_and_functions_stay_readable() -> None:
    """A longer file holds more than one idea, a longer function more than one step."""
    too_long = []
    for path in ROOT.rglob("*.py"):
        if len(path.read_text(encoding="utf-8").splitlines()) > MOST_LINES_OF_A_FILE:
            too_long.append(str(path))
        for node in _nodes(path):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                lines = (node.end_lineno or 0) - node.lineno + 1
                too_long += [f"{path}:{node.lineno} {node.name}"] if lines > MOST_LINES_OF_A_FUNCTION else []
    assert too_long == []


def _identifiers(path: Path) -> Iterator[str]:
    """Yield the names that a module uses: of variables, parameters, attributes, keywords, functions and classes."""
    for node in _nodes(path):
        for field in ("id", "arg", "attr", "name", "asname"):
            name = getattr(node, field, None)
            if isinstance(name, str):
                yield name


def test_names_that_say_nothing_become_rarer() -> None:
    """Call a thing what it is: matching nodes `nodes`, a parsed config `config`, a message `text`."""
    count = 0
    for path in ROOT.rglob("*.py"):
        count += sum(bool(VAGUE & set(name.lower().split("_"))) for name in _identifiers(path))
    assert count <= MOST_VAGUE


def _imports(path: Path, modules: set[str]) -> Iterator[str]:
    """Yield the modules of trtkit that a file imports, for types and inside functions too."""
    for node in _nodes(path):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in modules)
        elif isinstance(node, ast.ImportFrom) and node.module in modules:
            own = (f"{node.module}.{alias.name}" for alias in node.names)
            yield from (name if name in modules else node.module for name in own)


def test_no_modules_import_each_other() -> None:
    """Not for types either: what both need goes into a module of its own."""
    paths = {_module(path): path for path in ROOT.rglob("*.py")}
    graph = {name: set(_imports(path, set(paths))) - {name} for name, path in paths.items()}
    graphlib.TopologicalSorter(graph).prepare()


def _module(path: Path) -> str:
    return ".".join(path.relative_to(ROOT.parent).with_suffix("").parts).removesuffix(".__init__")


def test_only_its_folder_names_a_kind_of_draft_head() -> None:
    """Lower layers find kinds by their folders, and kinds do not import each other."""
    for path in ROOT.rglob("*.py"):
        texts = {node.value for node in _nodes(path) if isinstance(node, ast.Constant)}
        modules = [node.module or "" for node in _nodes(path) if isinstance(node, ast.ImportFrom)]
        for kind in known_kinds():
            if path.is_relative_to(ROOT / "drafts" / kind):
                continue
            assert kind not in texts, path
            assert not [module for module in modules if module.startswith(f"trtkit.drafts.{kind}")], path


def test_child_processes_do_not_search_the_current_folder_for_modules() -> None:
    """`python -m` alone would run a `torch.py` of whatever folder trtkit is started in."""
    unsafe = re.compile(r'(sys\.executable|"python3?"|_PYTHON), *"-m"')
    assert [str(path) for path in ROOT.rglob("*.py") if unsafe.search(path.read_text(encoding="utf-8"))] == []
