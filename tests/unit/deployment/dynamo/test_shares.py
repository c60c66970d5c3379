"""Which GPUs or cores a worker gets."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from trtkit.deployment.dynamo.fleet import share_of_machine

if TYPE_CHECKING:
    import pytest


def test_each_rank_of_each_worker_has_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,5,6,7")
    shares = [share_of_machine(number, workers=3, ranks=2) for number in range(3)]
    assert shares == [{"CUDA_VISIBLE_DEVICES": gpus} for gpus in ("4,5", "6,7", "4,5")]
    assert share_of_machine(0, workers=1, ranks=8) == {"CUDA_VISIBLE_DEVICES": "4,5,6,7"}


def test_ranks_share_the_cores_if_there_is_no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("CUDA_VISIBLE_DEVICES", "OMP_NUM_THREADS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: set(range(12)))
    assert share_of_machine(0, workers=1, ranks=1) == {}
    assert share_of_machine(0, workers=2, ranks=3) == {"OMP_NUM_THREADS": "2"}
