"""What prefill workers need, named before anything starts."""

from __future__ import annotations

import importlib.util

import pytest

from trtkit.deployment.dynamo.extra import require_nixl
from trtkit.errors import MissingPackageError


def test_nixl_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    with pytest.raises(MissingPackageError) as error:
        require_nixl()
    assert error.value.what == "prefill workers need NIXL, which moves caches between workers"
    assert error.value.fix == "pip install --no-deps nixl==1.5.1 nixl-cu13==1.5.1"
