"""Engines on TensorRT's simulated runtime."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.simulated_tensorrt import Simulated, simulate

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Simulated:
    """A device that runs the engines of bundles added to `plans`, with its own kernel cache."""
    monkeypatch.setenv("TRTKIT_CACHE_DIR", str(tmp_path / "cache"))
    return simulate(monkeypatch.setattr)
