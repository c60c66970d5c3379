"""Full TensorRT's Python API against TensorRT-RTX's: docs/tensorrt-apis.md lists every difference."""

from __future__ import annotations

import ast
import importlib.util
import json
import re
import shutil
import subprocess
import sys

import pytest

from tests.support.docs import DOCS, ROOT
from tests.tensorrt_plugin.surface import surface
from trtkit.backends import load_backend

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("tensorrt_bindings") is None or shutil.which("cc") is None,
    reason="needs TensorRT's Python bindings and a C compiler",
)
PAGE = DOCS / "tensorrt-apis.md"
ROW = re.compile(r"^\| `(\w+)`(?:: (.*?))? \| (full|RTX) \| (.+) \|$", re.MULTILINE)
UNUSED = "not used"
Difference = tuple[str, tuple[str, ...], str]


@pytest.fixture(scope="module")
def full(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    """The classes of full TensorRT's bindings, which load without its libraries."""
    command = [sys.executable, "-m", "tests.tensorrt_plugin.surface", str(tmp_path_factory.mktemp("libraries"))]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=True)
    found = json.loads(ran.stdout.splitlines()[-1])
    assert found["version"] in PAGE.read_text(encoding="utf-8")
    classes: dict[str, list[str]] = found["classes"]
    return classes


def rows() -> dict[Difference, str]:
    """Return what the page has: class, members and library, and what trtkit does."""
    found = ROW.findall(PAGE.read_text(encoding="utf-8"))
    return {(name, tuple(re.findall(r"`(\w+)`", members)), where): does for name, members, where, does in found}


def names_used() -> set[str]:
    """Return all names after a dot, and all texts, in trtkit's code."""
    names: set[str] = set()
    for file in (ROOT / "trtkit").rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Attribute):
                names.add(node.attr)
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                names.add(node.value)
    return names


def test_the_page_has_every_difference(full: dict[str, list[str]]) -> None:
    rtx = surface(load_backend("tensorrt_rtx").trt)
    differences: set[Difference] = set()
    for library, ours, theirs in (("RTX", rtx, full), ("full", full, rtx)):
        for name, members in ours.items():
            missing = tuple(sorted(set(members) - set(theirs.get(name, ()))))
            if name not in theirs or missing:
                differences.add((name, missing if name in theirs else (), library))
    assert set(rows()) == differences


def test_the_page_says_which_names_trtkit_uses() -> None:
    """Of what only TensorRT-RTX has: without it, engines of full TensorRT go another way."""
    used = names_used()
    for (name, members, where), does in rows().items():
        if where == "RTX":
            assert (does == UNUSED) == (not used & {*members, *([] if members else [name])}), name
