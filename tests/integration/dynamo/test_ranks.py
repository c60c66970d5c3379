"""SmolLM2-135M-Instruct on three ranks, each with a third of its 9 heads: generated, and served as one worker."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path

import pytest

from tests.integration.test_generate_command_smollm2 import GRAVITY
from tests.support.dynamo import MODEL, Served, serving, wait_until
from trtkit import LLM, SamplingParams
from trtkit.builder.build import build_bundle
from trtkit.config.load import load_config
from trtkit.jobs.runner import new_runner

pytestmark = pytest.mark.slow
MEMBER = b"trtkit.llm.distributed.member"


def ranks_of(worker: int) -> list[int]:
    """Return the processes of a worker's other ranks, whichever of its threads started them."""
    tasks = Path(f"/proc/{worker}/task").glob("*/children")
    children = [int(word) for task in tasks for word in task.read_text().split()]
    return [pid for pid in children if MEMBER in Path(f"/proc/{pid}/cmdline").read_bytes()]


def answer(served: Served) -> str:
    """Return what follows `Gravity is`."""
    output = served.client().completions.create(model=MODEL, prompt="Gravity is", max_tokens=20, temperature=0.0)
    return output.choices[0].text


def test_three_ranks_are_one_worker(tmp_path: Path) -> None:
    config = load_config("llama", ("precision=fp32", "llm.max_batch_size=4", "parallel={tensor: 3}"))
    bundle = build_bundle(config, tmp_path / "llama", new_runner()).bundle.path
    with LLM(bundle, runtime="reference") as llm:
        output = llm.generate("Gravity is", SamplingParams(temperature=0, max_tokens=20))[0].outputs[0]
        assert output.text == GRAVITY
    with serving(bundle) as served:
        threading.Thread(target=served.fleet.watch, daemon=True).start()
        assert answer(served) == GRAVITY
        worker = served.fleet.workers[0].process.pid
        ranks = ranks_of(worker)
        assert len(ranks) == 2
        os.kill(ranks[1], signal.SIGKILL)
        wait_until(lambda: served.fleet.workers[0].process.pid != worker)
        assert not Path(f"/proc/{ranks[0]}").exists()
        wait_until(lambda: served.fleet.workers[0].is_healthy)
        assert answer(served) == GRAVITY
        again = ranks_of(served.fleet.workers[0].process.pid)
    assert len(again) == 2
    assert not any(Path(f"/proc/{pid}").exists() for pid in again)
