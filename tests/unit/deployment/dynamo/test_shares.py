"""Which GPUs or cores a worker gets."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from trtkit.deployment.dynamo.fleet import shares_of_machine

if TYPE_CHECKING:
    import pytest


def test_each_rank_of_each_worker_has_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,5,6,7")
    for ranks, expected in (([2, 2, 2], ["4,5", "6,7", "4,5"]), ([1, 2, 1], ["4", "5,6", "7"]), ([8], ["4,5,6,7"])):
        assert shares_of_machine(ranks) == [{"CUDA_VISIBLE_DEVICES": gpus} for gpus in expected]


def test_ranks_share_the_cores_if_there_is_no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("CUDA_VISIBLE_DEVICES", "OMP_NUM_THREADS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: set(range(12)))
    assert shares_of_machine([1]) == [{}]
    assert shares_of_machine([3, 3]) == [{"OMP_NUM_THREADS": "2"}] * 2
    assert shares_of_machine([1, 2]) == [{"OMP_NUM_THREADS": "4"}] * 2
