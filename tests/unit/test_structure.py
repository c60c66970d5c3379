"""What the tree may hold at most; whoever lowers a number writes the new one here."""

from __future__ import annotations

import ast
from pathlib import Path

import trtkit

ROOT = Path(trtkit.__file__).parent
# TensorRT, torch and onnx have no types to speak of: what holds their objects says Any.
BOUNDARY = {"backends", "network", "reference"}
MOST_ANY, MOST_JSON = 841, 75


def _names(name: str) -> int:
    """Return how often annotations and aliases outside the boundary say `name`."""
    count = 0
    for path in ROOT.rglob("*.py"):
        if path.relative_to(ROOT).parts[0] not in BOUNDARY:
            tree = ast.parse(path.read_text(encoding="utf-8"))
            count += sum(isinstance(node, ast.Name) and node.id == name for node in ast.walk(tree))
    return count


def test_any_becomes_rarer() -> None:
    """Name the type, or make a dataclass for it."""
    assert _names("Any") <= MOST_ANY


def test_data_without_a_type_becomes_rarer() -> None:
    """Give the data a dataclass; `trtkit.jobs.json_form` makes JSON of it."""
    assert _names("Json") <= MOST_JSON
