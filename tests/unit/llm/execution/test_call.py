"""How many cached tokens a call lets attention read."""

from __future__ import annotations

import numpy as np
import pytest

from trtkit.llm.execution import Call
from trtkit.network.input_spec import kv_window


@pytest.mark.parametrize(
    ("used", "length", "window"),
    [(1, 2048, 64), (64, 2048, 64), (65, 2048, 128), (1025, 2048, 2048), (1025, 1500, 1500), (3, 32, 32)],
)
def test_a_window_is_a_power_of_two_within_the_slot(used: int, length: int, window: int) -> None:
    assert kv_window(used, length) == window


def test_windows_hold_what_is_used_and_are_few() -> None:
    windows = [kv_window(used, 8192) for used in range(1, 8193)]
    assert all(used <= window < max(65, 2 * used) for used, window in enumerate(windows, 1))
    assert len(set(windows)) == 8


def test_a_call_reads_what_its_longest_row_holds_with_its_new_tokens() -> None:
    """Idle rows count too: with a sliding window, one that reads nothing near its end has a softmax over no keys."""
    ids = np.zeros((3, 4), np.int64)
    call = Call(0, ids, np.array([10, 125, 300]), np.array([4, 4, 0]))
    assert call.window(2048) == 512
    assert Call(0, ids[:2], call.starts[:2], call.counts[:2]).window(2048) == 256
    assert Call(0, ids[:1], np.array([0]), np.array([0])).window(2048) == 64
