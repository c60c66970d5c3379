"""Exports each vision tower once for all tests that use it."""

from __future__ import annotations

import pytest


@pytest.fixture(scope="module", autouse=True)
def exports(one_export: None) -> None:
    """Share torch's exports."""
