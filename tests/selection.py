"""Which cases of a test run every time, and which only with the slow ones."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

LIST = Path(__file__).with_name("slow_tests.txt")
"""Tests and cases that only `make slow` runs because others cover what they execute: `python -m tests.choose`."""


def slow_unless(is_kept: Callable[..., bool], cases: Iterable[Any]) -> list[Any]:
    """Return a test's parameters, those that are not kept marked slow. A tuple is several parameters, as in pytest."""
    marked = []
    for case in cases:
        values = case if isinstance(case, tuple) else (case,)
        marked.append(case if is_kept(*values) else pytest.param(*values, marks=pytest.mark.slow))
    return marked


@cache
def listed() -> frozenset[str]:
    """Return the node IDs in `LIST`; one without parameters stands for all cases of its test."""
    lines = LIST.read_text(encoding="utf-8").splitlines()
    return frozenset(line for line in lines if line and not line.startswith("#"))


def is_listed(nodeid: str) -> bool:
    """Whether the list leaves a test, or this case of it, to `make slow`."""
    return nodeid in listed() or nodeid.partition("[")[0] in listed()
