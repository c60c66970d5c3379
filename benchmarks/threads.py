"""trtkit's policy for waiting threads against libgomp's default, on a quiet and on a busy machine.

SmolLM2-135M in fp32 on the reference executor: 8 tokens after a short prompt, in a new process each turn.
"""

from __future__ import annotations

import contextlib
import os
import statistics
import subprocess
import sys
import tempfile
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.measure import interleaved, ratio, run_bare, summary, write
from trtkit.builder.build import build_bundle
from trtkit.config.load import load_config
from trtkit.jobs.runner import ChildRunner

if TYPE_CHECKING:
    from collections.abc import Iterator

REPEATS, ANSWERS = 3, 4
# `libgomp` is what libgomp uses if nothing is set.
POLICIES = {"trtkit": {}, "libgomp": {"GOMP_SPINCOUNT": "300000"}}
SCRIPT = """
import json, sys, time
from trtkit import LLM, SamplingParams

with LLM(sys.argv[1]) as llm:
    seconds = []
    for _ in range(int(sys.argv[2])):
        started = time.perf_counter()
        llm.generate(["The capital of France"], SamplingParams(max_tokens=8))
        seconds.append(time.perf_counter() - started)
print(json.dumps(seconds[1:]))
"""


@contextlib.contextmanager
def busy(processes: int) -> Iterator[None]:
    """Keep cores busy with processes in an endless loop."""
    running = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(processes)]
    try:
        yield
    finally:
        for process in running:
            process.kill()
            process.wait()


def answer_seconds(bundle: Path, policy: dict[str, str]) -> float:
    """Return the median seconds of an answer in a new process."""
    os.environ.pop("GOMP_SPINCOUNT", None)
    os.environ.update(policy)
    seconds: list[float] = run_bare([sys.executable, "-c", SCRIPT, str(bundle), str(ANSWERS)])
    return statistics.median(seconds)


def figures(bundle: Path, others: int) -> dict[str, Any]:
    """Measure both policies next to `others` busy processes."""
    turns = {name: partial(answer_seconds, bundle, policy) for name, policy in POLICIES.items()}
    with busy(others):
        samples = interleaved(turns, REPEATS, warmups=0)
    return {
        "seconds": {name: summary(values) for name, values in samples.items()},
        "ratio": ratio(samples["trtkit"], samples["libgomp"]),
    }


def main() -> None:
    """Measure and write the results."""
    with tempfile.TemporaryDirectory() as folder:
        bundle = Path(folder) / "llama"
        build_bundle(load_config("llama", ["precision=fp32"]), bundle, ChildRunner())
        found = {f"beside {others} busy processes": figures(bundle, others) for others in (0, 1)}
    print(write("threads", found))


if __name__ == "__main__":
    main()
