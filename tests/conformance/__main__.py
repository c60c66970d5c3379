"""Run all ONNX node cases: `python -m tests.conformance [name part ...]`."""

from __future__ import annotations

import os
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import onnx
import torch
from onnx.backend.test.case.node import collect_testcases

from trtkit.backends import load_backend

from .case import Outcome, is_explained, run_case
from .pool import run_isolated
from .report import counts, write_json, write_markdown

ROOT = Path(__file__).parents[2]


def collect(parts: list[str] | None = None) -> list[Any]:
    """Return the wheel's node cases, those whose name holds one of `parts` if any are given."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        cases = collect_testcases(None)
    return [case for case in cases if not parts or any(part in case.name for part in parts)]


def run_all(cases: list[Any], processes: int) -> list[Outcome]:
    """Run every case in a pool of processes."""
    backend = load_backend("tensorrt_rtx")
    torch.set_num_threads(1)

    def work(index: int) -> Outcome:
        try:
            return run_case(backend, cases[index])
        except Exception as error:  # whatever a case does must not end the run; the report names it
            return Outcome(cases[index].name, cases[index].model.graph.node[-1].op_type, cause=f"harness: {error!r}")

    outcomes: dict[int, Outcome] = {}
    for index, outcome, death in run_isolated(work, list(range(len(cases))), processes):
        case = cases[index]
        outcomes[index] = outcome or Outcome(case.name, case.model.graph.node[-1].op_type, cause=death)
    return [outcomes[index] for index in sorted(outcomes)]


def main(parts: list[str]) -> int:
    """Run the cases; write the reports unless only some were asked for. Return 1 where a mismatch is unexplained."""
    start = time.monotonic()
    processes = min(2, os.cpu_count() or 1)
    outcomes = run_all(collect(parts), processes)
    backend = load_backend("tensorrt_rtx")
    versions = {"onnx": onnx.__version__, backend.name: backend.version, "torch": torch.__version__.split("+")[0]}
    provenance = {"versions": versions, "processes": processes, "duration_s": round(time.monotonic() - start)}
    wrong = [item for item in outcomes if item.parsed and not item.matched and not is_explained(item)]
    for outcome in outcomes if parts else wrong:
        print(outcome)
    print(counts(outcomes))
    if not parts:
        write_json(ROOT / "benchmarks" / "conformance.json", outcomes, provenance)
        write_markdown(ROOT / "docs" / "conformance.md", outcomes, provenance)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
