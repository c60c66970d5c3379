"""Which GPUs or cores each of several processes gets."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from trtkit.threads import shares_of_machine, visible_gpus

if TYPE_CHECKING:
    import pytest


def test_each_rank_of_each_process_has_a_gpu() -> None:
    for ranks, expected in (([2, 2, 2], ["4,5", "6,7", "4,5"]), ([1, 2, 1], ["4", "5,6", "7"]), ([8], ["4,5,6,7"])):
        shares = [{"CUDA_VISIBLE_DEVICES": gpus} for gpus in expected]
        assert shares_of_machine(ranks, ["4", "5", "6", "7"]) == shares


def test_hidden_gpus_are_not_shared(monkeypatch: pytest.MonkeyPatch) -> None:
    for listed, gpus in (("4,GPU-8932f937", ["4", "GPU-8932f937"]), ("", []), ("-1", [])):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", listed)
        assert visible_gpus() == gpus


def test_ranks_share_the_cores_if_there_is_no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: set(range(12)))
    assert shares_of_machine([1], []) == [{}]
    assert shares_of_machine([3, 3], []) == [{"OMP_NUM_THREADS": "2"}] * 2
    assert shares_of_machine([1, 2], []) == [{"OMP_NUM_THREADS": "4"}] * 2
