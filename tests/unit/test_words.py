"""Phrases that read as translated, in what users and maintainers read; whoever lowers a number writes the new one here.

The list is the worst of what stood in trtkit's texts, each with what to write instead; it finds phrases, not style.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import trtkit

if TYPE_CHECKING:
    from collections.abc import Iterator

PACKAGE = Path(trtkit.__file__).parent
ROOT = PACKAGE.parent
MOST, MOST_IN_CODE = 0, 0
# What not to write, as a regular expression, and what to write.
PHRASES = {
    r"(?<!there )\b(is|are|was) no (?!longer|more\b|such|way|need|reason)": "is not a",
    r"\bbehind\b": "after",
    r"\b(in )?few(er)? bits\b": "low-bit, lower precision",
    r"\bwhole or not\b": "atomically",
    r"\bwhere (there|it|they) (is|are|has|have) (none|no)\b": "if there is none",
    r"\b(none|empty|nothing) where\b": "None if",
    r"\bbeside\b": "next to; compared with",
    r"\bname an? \w+ that can\b": "choose a writable",
    r"\bby itself\b": "automatically",
    r"\b(what|than|as|is|are) (is )?(asked|said)\b( for)?": "requested",
    r"\b[Ee]nds with \d": "exits with",
    r"\bproves? nothing\b": "is inconclusive",
    r"\b(prove|proves|proved) (them |it |that |a \w+ )?(right|correct)\b": "verify",
    r"\b(GPU|library|server) is (there|here)\b": "is present",
    r"\bstands? (before|for|in|at|on|where)\b": "comes before, means, is in",
    r"\bin (the|its|their) place( of)?\b": "instead of",
    r"\bis (to be )?had\b": "is available",
    r"\b(are|from|is) the least\b|\bthe least (and|of|that)\b": "at least",
    r"\bof (yours|one's own|the reader's own)\b": "your own",
    r"\bha(s|ve) no meaning\b": "does not apply to",
    r"\bif it is none\b|\bwhat is none\b": "if it is not one",
    r"\bno whole\b": "not a complete",
    r"\bnobody vouches for\b": "untrusted",
    r"\bthat (goes|leaves|left)\b(?! through)": "that disconnects",
    r"\bsay(s)? (what|which|how) \w+ (fits|can)\b": "estimate",
    r"\bwhat stands\b": "what is",
    r"\bwithout a word\b": "silently",
    r"\d+ a (second|token|call|request|slot)\b": "per",
    r"\b(wants|wanted|wanting)\b": "needs, requires",
    r"\bnot as it should be\b": "wrong",
    r"\b(is|are) out of tolerance\b(?=.*\bEnds\b)": "exits with 3 if",
}
_PATTERN = re.compile("|".join(f"(?:{phrase})" for phrase in PHRASES), re.IGNORECASE)
# Calls whose texts reach users: errors, problems, descriptions of a config's keys.
_SHOWN = re.compile(r"(Error|Problem|Field|_error|_Key)$")
# Names of variables whose texts reach users, as the parts of an error.
_PARTS = {"what", "fix", "hint"}


def _texts(node: ast.AST) -> Iterator[str]:
    """Yield the texts below a node, parts of f-strings too."""
    for each in ast.walk(node):
        if isinstance(each, ast.Constant) and isinstance(each.value, str):
            yield each.value


def _shown(tree: ast.AST) -> Iterator[str]:
    """Yield the texts of a module that users read in errors and references."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and _SHOWN.search(_last_name(node.func)):
            yield from _texts(node)
        elif isinstance(node, ast.Assign) and _PARTS & {_last_name(target) for target in node.targets}:
            yield from _texts(node.value)


def _last_name(node: ast.expr) -> str:
    """Return a name, or the last part of a dotted one; empty for anything else."""
    return getattr(node, "id", "") or getattr(node, "attr", "")


@cache
def _parsed() -> list[tuple[Path, str, ast.Module]]:
    """Return trtkit's modules: path, source, tree."""
    sources = [(path, path.read_text(encoding="utf-8")) for path in sorted(PACKAGE.rglob("*.py"))]
    return [(path, source, ast.parse(source)) for path, source in sources]


def texts() -> Iterator[tuple[str, str]]:
    """Yield what users read, with the file that holds it."""
    for path, _, tree in _parsed():
        name = str(path.relative_to(ROOT))
        is_cli = path.parent.name == "cli"
        yield from ((name, text) for text in (_texts(tree) if is_cli else _shown(tree)))
    for path in (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))):
        yield str(path.relative_to(ROOT)), path.read_text(encoding="utf-8")


def code_texts() -> Iterator[tuple[str, str]]:
    """Yield docstrings and comments, which the next maintainer reads, with the file that holds them."""
    for path, source, tree in _parsed():
        name = str(path.relative_to(ROOT))
        for node in ast.walk(tree):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                yield name, ast.get_docstring(node) or ""
        tokens = tokenize.generate_tokens(io.StringIO(source).readline) if "#" in source else ()
        yield from _paragraphs(name, [token for token in tokens if token.type == tokenize.COMMENT])


def _paragraphs(name: str, comments: list[tokenize.TokenInfo]) -> Iterator[tuple[str, str]]:
    """Join the comments of neighboring lines."""
    text, last = "", -1
    for comment in comments:
        line = comment.start[0]
        if line != last + 1:
            yield name, text
            text = ""
        text, last = f"{text} {comment.string.lstrip('# ')}", line
    yield name, text


def phrases(texts: Iterator[tuple[str, str]]) -> Iterator[str]:
    """Yield every phrase to replace: its file, and the phrase with what is around it."""
    for name, text in texts:
        plain = " ".join(text.split())
        for match in _PATTERN.finditer(plain):
            yield f"{name}: ...{plain[max(match.start() - 30, 0) : match.end() + 30]}..."


def test_phrases_that_read_as_translated_become_rarer() -> None:
    """Write the right column of PHRASES."""
    remaining = list(phrases(texts()))
    assert len(remaining) <= MOST, "\n".join(remaining)


def test_phrases_in_docstrings_and_comments_become_rarer() -> None:
    """The same list, for the next maintainer."""
    remaining = list(phrases(code_texts()))
    assert len(remaining) <= MOST_IN_CODE, "\n".join(remaining)


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("a hybrid is no ONNX file", 1),
        ("there is no GPU here; it is no longer served", 0),
        ("None where there is none", 1),
        ("measured beside transformers", 1),
        ("compared with transformers", 0),
        ("the bundle is not a folder", 0),
    ],
)
def test_the_list_finds_what_it_names(text: str, count: int) -> None:
    assert len(_PATTERN.findall(text)) == count
