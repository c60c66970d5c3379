"""Towers that only differ in what comes after their export are exported once."""

from __future__ import annotations

import pytest


@pytest.fixture(scope="module", autouse=True)
def exports(one_export: None) -> None:
    """Share what torch exports."""
