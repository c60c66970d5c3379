"""Answers questions that only a GPU can: `python -m tests.gpu`. See README.md in this folder."""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from tests.gpu.answers import Record, path_of, read
from tests.gpu.pack import SIMULATION
from tests.gpu.place import SIMULATED
from tests.gpu.rule import what_if
from tests.gpu.run import ROOT, Call, run_steps
from tests.gpu.steps import STEPS

if TYPE_CHECKING:
    from tests.gpu.step import Step

RESULTS = ROOT / "benchmarks" / "gpu"


def main() -> int:
    """Run the steps that fit into the time limit; print a table."""
    parser = argparse.ArgumentParser(prog="python -m tests.gpu", description=__doc__)
    parser.add_argument("--minutes", type=float, default=8, help="Start no step that would not end in time.")
    parser.add_argument("--again", action="append", default=[], metavar="STEP", help="Ask a step again; `all` for all.")
    parser.add_argument("--only", action="append", default=[], metavar="STEP", help="Run only these steps.")
    parser.add_argument("--out", type=Path, help="Folder for the answers, benchmarks/gpu by default.")
    parser.add_argument("--scratch", type=Path, help="Folder for models and bundles, kept between calls.")
    parser.add_argument(
        "--simulated", action="store_true", help="Run on the simulated runtime; files go to --out only."
    )
    parser.add_argument(
        "--simulated-tensorrt",
        action="store_true",
        help="Run trtkit's runtime with TensorRT simulated by torch, on the GPU if one is present.",
    )
    parser.add_argument("--what-if", metavar="X.Y", help="Print what would run on a GPU of a compute capability.")
    parser.add_argument("--list", action="store_true", help="Print the steps and exit.")
    options = parser.parse_args()
    unknown = {*options.again, *options.only} - {*STEPS, "all"}
    if unknown:
        parser.error(f"unknown step {', '.join(sorted(unknown))}; steps are {', '.join(STEPS)}")
    if options.list:
        print("\n".join(f"{step.name:16} {step.estimate_s:4} s  {step.question}" for step in STEPS.values()))
        return 0
    if options.what_if:
        try:
            print("\n".join(what_if(STEPS.values(), options.what_if)))
        except ValueError:
            parser.error(f"--what-if {options.what_if}: expected a compute capability such as 9.0")
        return 0
    on_host = options.simulated or (options.simulated_tensorrt and not torch.cuda.is_available())
    if on_host and options.out and options.out.resolve() == RESULTS:
        parser.error("simulated answers are not written to benchmarks/gpu: choose another --out")
    folder = options.out or (Path(tempfile.mkdtemp(prefix="trtkit-gpu-")) if on_host else RESULTS)
    scratch = options.scratch or default_scratch(options)
    steps = [step for step in STEPS.values() if is_wanted(step, options)]
    names = frozenset(STEPS if "all" in options.again else options.again)
    place = SIMULATED if on_host else gpu_name(parser)
    call = Call(folder.resolve(), scratch.resolve(), place, options.minutes, names)
    rows, waiting = [], []
    for step, record in run_steps(steps, call):
        if record is None:
            waiting.append(step.name)
        else:
            rows.append(record)
            print(row(record), flush=True)
    print(f"\n{place}: answers in {folder}")
    print("\n".join(row(read(path)) for path in (path_of(folder, step.name) for step in steps) if path.exists()))
    if waiting:
        print(f"no time was left for {', '.join(waiting)}: call again")
    return 0


def is_wanted(step: Step, options: argparse.Namespace) -> bool:
    """Whether to run a step. On host memory every step is simulated, so explicitly simulated ones would be repeats."""
    if options.only and step.name not in options.only:
        return False
    if options.simulated_tensorrt:
        return step.simulates or step.needs == "kernels"
    return not options.simulated or (step.is_simulated and not step.simulates)


def default_scratch(options: argparse.Namespace) -> Path:
    """Return the folder for models and bundles; the kit contains those for the simulated TensorRT."""
    if SIMULATION.exists() and not options.simulated:
        return SIMULATION
    return Path(tempfile.gettempdir()) / f"trtkit-gpu-{'simulated' if options.simulated else 'kit'}"


def gpu_name(parser: argparse.ArgumentParser) -> str:
    """Return the GPU's name. Exits if there is no GPU."""
    if not torch.cuda.is_available():
        parser.error("there is no NVIDIA GPU here; --simulated runs the same steps on the simulated runtime")
    return torch.cuda.get_device_name()


def row(record: Record) -> str:
    """Return a line of the table."""
    refuted = f", {len(record.refuted)} refuted: {'; '.join(str(answer['what']) for answer in record.refuted)}"
    text = f"{record.step:16} {record.state:10} {record.seconds:6.1f} s  {len(record.answers)} answers"
    return text + (refuted if record.refuted else "") + (f"  {record.error}" if record.error else "")


if __name__ == "__main__":
    raise SystemExit(main())
