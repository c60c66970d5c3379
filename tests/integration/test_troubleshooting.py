"""Every error quoted in the troubleshooting guide is one of trtkit's or TensorRT's."""

from __future__ import annotations

import ast
import re
from functools import cache

import pytest

from tests.support.docs import DOCS, ROOT

PAGE = DOCS / "troubleshooting.md"
QUOTED = re.findall(r"^### `(.*)`$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
RECORDED = ROOT / "benchmarks" / "conformance.json"  # what TensorRT said of ONNX's node tests, word by word


@cache
def texts() -> tuple[str, ...]:
    """Return every text in trtkit's code, an f-string as its parts, but for docstrings."""
    found: list[str] = []
    for path in (ROOT / "trtkit").rglob("*.py"):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        docs = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
        constants = (node for node in ast.walk(tree) if isinstance(node, ast.Constant) and id(node) not in docs)
        found += [node.value for node in constants if isinstance(node.value, str)]
    return tuple(found)


def test_the_page_quotes_errors() -> None:
    assert len(QUOTED) > 40
    assert len(set(QUOTED)) == len(QUOTED)


@pytest.mark.parametrize("quoted", QUOTED)
def test_a_quoted_error_is_said(quoted: str) -> None:
    own = any(quoted in text for text in texts())
    assert own or quoted in RECORDED.read_text(encoding="utf-8").replace('\\"', '"'), "nobody says this any longer"


def test_every_error_has_a_meaning_below_it() -> None:
    sections = re.split(r"^##+ ", PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE)
    errors = [section for section in sections if section.startswith("`")]
    assert len(errors) == len(QUOTED)
    assert [section for section in errors if len(section.splitlines()) < 3] == []
