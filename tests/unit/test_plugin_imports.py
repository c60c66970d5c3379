"""A custom op's folder stands on few modules of trtkit, so that a user's own can too."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

PLUGINS = Path(__file__).parents[2] / "plugins"
FILES = [path for path in sorted(PLUGINS.glob("*/*.py")) if not path.name.startswith("test_")]
ALLOWED = (
    "trtkit.network.custom_op",
    "trtkit.network.foreign",
    "trtkit.network.lowering",
    "trtkit.network.aot",
    "trtkit.network.plugin",
    "trtkit.network.graph",
    "trtkit.arrays",
    "trtkit.dtypes",
    "trtkit.errors",
)
SHARED = ("boxes.",)


@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_an_op_imports_only_what_it_may(path: Path) -> None:
    imported = [node.module or "" for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.ImportFrom)]
    own = [module for module in imported if module.startswith("trtkit")]
    assert [module for module in own if not module.startswith(ALLOWED)] == []


@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_ops_share_only_what_is_no_op(path: Path) -> None:
    nodes = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.ImportFrom)]
    beside = [node.module or "" for node in nodes if node.level > 1]
    assert [module for module in beside if not module.startswith(SHARED)] == []
