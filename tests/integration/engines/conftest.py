"""Engines on TensorRT's simulated runtime."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.simulated_tensorrt import Simulated, simulate

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Simulated:
    """A device that runs engines of the bundles that are added to `plans`; kernels are kept in a folder of its own."""
    monkeypatch.setenv("TRTKIT_CACHE_DIR", str(tmp_path / "cache"))
    return simulate(monkeypatch.setattr)
