"""A rank that dies, hangs or fails ends all of them, with one error that names it."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

from tests.integration.parallel.conftest import rank_processes
from trtkit.bundle.bundle import open_bundle
from trtkit.errors import GenerationError, RankError, TrtkitError
from trtkit.llm.distributed.open import open_distributed
from trtkit.llm.execution import Call, ReferenceDecoder
from trtkit.llm.execution.single import OpenOptions

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from trtkit.llm.distributed.decoder import DistributedDecoder

    BundleOf = Callable[[str], Path]

LIMIT_S = 10.0
PROMPT = Call(0, np.ones((2, 4), np.int64), np.zeros(2, np.int64), np.full(2, 4))


def run_until_it_fails(decoder: DistributedDecoder) -> RankError:
    """Decode until a rank is missed; return the error."""
    while True:
        try:
            decoder.forward(PROMPT)
        except RankError as error:
            return error


def running(pids: Iterable[int]) -> list[int]:
    """Return the processes that there still are."""
    return [pid for pid in pids if Path(f"/proc/{pid}").exists()]


def fail(path: Path, ending: signal.Signals, r: random.Random) -> tuple[int, RankError, float]:
    """Send a signal to a random rank at a random step; return the rank, the error, and how long it took."""
    decoder = open_distributed(open_bundle(path), OpenOptions("reference", 2))
    pids = decoder.member_pids
    rank = r.choice(sorted(pids))
    sent: list[float] = []

    def send() -> None:
        sent.append(time.monotonic())
        os.kill(pids[rank], ending)

    threading.Timer(r.uniform(0, 0.3), send).start()
    error = run_until_it_fails(decoder)
    took_s = time.monotonic() - sent[0]
    assert not running(pids.values())
    with pytest.raises(RankError) as again:
        decoder.cache.copy(0, 1, slice(0, 4))
    assert str(again.value) == str(error)
    decoder.close()
    return rank, error, took_s


@pytest.mark.parametrize(("grid", "count"), [("tensor", 3), pytest.param("both", 20, marks=pytest.mark.slow)])
def test_a_rank_that_is_killed_at_a_random_step_ends_all(bundle_of: BundleOf, grid: str, count: int) -> None:
    r = random.Random(count)
    for _ in range(count):
        rank, error, took_s = fail(bundle_of(grid), signal.SIGKILL, r)
        assert str(error) == f"ranks: rank {rank} has ended: signal SIGKILL\nfix: open the bundle again"
        assert count < 20 or took_s < LIMIT_S


@pytest.mark.slow
def test_a_rank_that_hangs_ends_all(bundle_of: BundleOf) -> None:
    rank, error, took_s = fail(bundle_of("both"), signal.SIGSTOP, random.Random(0))
    assert error.what == f"rank {rank} has not answered for 5 seconds"
    assert took_s < LIMIT_S


def test_ranks_end_with_the_process_that_started_them(bundle_of: BundleOf) -> None:
    code = (
        "import sys, time; from trtkit.bundle.bundle import open_bundle\n"
        "from trtkit.llm.execution import open_execution\n"
        "execution = open_execution(open_bundle(sys.argv[1]), 'reference', 1)\n"
        "print(*execution.member_pids.values(), flush=True); time.sleep(600)"
    )
    command = [sys.executable, "-c", code, str(bundle_of("tensor"))]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        pids = [int(word) for word in process.stdout.readline().split()]
        assert running(pids) == pids
        process.kill()
    end = time.monotonic() + LIMIT_S
    while running(pids) and time.monotonic() < end:
        time.sleep(0.05)
    assert not running(pids)


def test_a_failure_at_the_start_leaves_no_process(bundle_of: BundleOf) -> None:
    with pytest.raises(GenerationError, match="no GPU to run the engine"):
        open_distributed(open_bundle(bundle_of("tensor")), OpenOptions("tensorrt", 1))
    assert not rank_processes()


def test_a_failure_of_the_first_rank_ends_the_others(bundle_of: BundleOf, monkeypatch: pytest.MonkeyPatch) -> None:
    decoder = open_distributed(open_bundle(bundle_of("tensor")), OpenOptions("reference", 2))
    pids = decoder.member_pids.values()
    monkeypatch.setattr(ReferenceDecoder, "forward", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        decoder.forward(PROMPT)
    assert not running(pids)
    with pytest.raises(TrtkitError, match="internal error: ZeroDivisionError"):
        decoder.forward(PROMPT)
    decoder.close()


def test_a_rank_that_fails_says_why(bundle_of: BundleOf, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The children cannot import safetensors: the error has their last line."""
    (tmp_path / "safetensors.py").write_text("raise ImportError('planted')\n")
    monkeypatch.syspath_prepend(tmp_path)  # where children look too; this process has imported it already
    with pytest.raises(RankError) as error:
        open_distributed(open_bundle(bundle_of("tensor")), OpenOptions("reference", 1))
    assert error.value.what == "rank 1 has ended: exit code 1; its last words: ImportError: planted"
    assert not rank_processes()
