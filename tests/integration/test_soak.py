"""The soak benchmark for 20 seconds: its clients, its canary, its counts."""

from __future__ import annotations

import pytest

from benchmarks.soak import soak


@pytest.mark.slow
def test_a_served_model_stays_right_quick_and_small_under_hostile_load() -> None:
    figures = soak(1 / 3)
    canary, requests = figures["canary"], figures["requests"]
    assert figures["failures"] == canary["wrong"] == []
    assert canary["answers"] > 20
    assert canary["longest wait for a piece, s"]["max"] < 2
    assert {
        "right: answered",
        "wrong: refused",
        "large: refused",
        "noise: refused",
        "words: refused",
    } <= requests.keys()
    for name in ("server", "model's process"):
        assert figures[name]["threads"]["max"] - figures[name]["threads"]["min"] <= 2
        assert figures[name]["descriptors"]["max"] - figures[name]["descriptors"]["min"] <= 20
    assert figures["model's process"]["rss_mib"]["max"] < 2 * figures["model's process"]["rss_mib"]["first"]
