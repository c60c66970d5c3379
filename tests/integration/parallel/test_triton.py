"""Triton's Python model is rank 0 of its group."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tritonclient.utils import InferenceServerException

from tests.support.served_llm import answers, text
from tests.support.triton import serving
from trtkit import LLM, SamplingParams
from trtkit.cli.main import main

if TYPE_CHECKING:
    from collections.abc import Callable

PROMPTS = ["the quick brown", "do not go gentle into"]


def ranks_of(model: str) -> list[int]:
    """Return the processes of the ranks that a model's process started."""
    stubs = [path for path in Path("/proc").glob("[0-9]*") if f"/{model}/1/model.py" in _command(path)]
    tasks = [task for stub in stubs for task in stub.glob("task/*/children")]
    pids = [int(word) for task in tasks for word in task.read_text().split()]
    return [pid for pid in pids if "trtkit.llm.distributed" in _command(Path(f"/proc/{pid}"))]


def _command(process: Path) -> str:
    try:
        return (process / "cmdline").read_bytes().replace(b"\0", b" ").decode()
    except OSError:
        return ""


def test_triton_serves_two_ranks_as_one_model(bundle_of: Callable[[str], Path], tmp_path: Path) -> None:
    with LLM(bundle_of("one"), runtime="reference") as llm:
        outputs = llm.generate(PROMPTS, SamplingParams(temperature=0, max_tokens=12))
        expected = [output.outputs[0].text for output in outputs]
    main(["deploy", str(bundle_of("tensor")), "--name", "ranks", "--repository", str(tmp_path / "models"), "-q"])
    with serving(tmp_path / "models") as served:
        asked = [answers(served, "ranks", text_input=each, max_tokens=12, temperature=0.0) for each in PROMPTS]
        assert [text(pieces) for pieces in asked] == expected
        (rank,) = ranks_of("ranks")
        os.kill(rank, signal.SIGKILL)
        with pytest.raises(InferenceServerException, match="rank 1 has ended: signal SIGKILL"):
            answers(served, "ranks", text_input=PROMPTS[0], max_tokens=12, temperature=0.0)
    assert not ranks_of("ranks")
