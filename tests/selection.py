"""Which cases of a test run every time, and which only with the slow ones."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable


def slow_unless(is_kept: Callable[..., bool], cases: Iterable[Any]) -> list[Any]:
    """Return a test's parameters, those that are not kept marked slow. A tuple is several parameters, as in pytest."""
    marked = []
    for case in cases:
        values = case if isinstance(case, tuple) else (case,)
        marked.append(case if is_kept(*values) else pytest.param(*values, marks=pytest.mark.slow))
    return marked
