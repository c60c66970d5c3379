"""Ask a GPU what only a GPU can tell: `python -m tests.gpu`. See README.md in this folder."""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

from tests.gpu.answers import Record, path_of, read
from tests.gpu.place import SIMULATED
from tests.gpu.run import ROOT, Call, run_steps
from tests.gpu.steps import STEPS

RESULTS = ROOT / "benchmarks" / "gpu"


def main() -> int:
    """Run the steps that fit into the time; print a table."""
    parser = argparse.ArgumentParser(prog="python -m tests.gpu", description=__doc__)
    parser.add_argument("--minutes", type=float, default=8, help="Start no step that would not end in time.")
    parser.add_argument("--again", action="append", default=[], metavar="STEP", help="Ask a step again; `all` for all.")
    parser.add_argument("--only", action="append", default=[], metavar="STEP", help="Run only these steps.")
    parser.add_argument("--out", type=Path, help="Folder for the answers, benchmarks/gpu by default.")
    parser.add_argument("--scratch", type=Path, help="Folder for models and bundles, kept between calls.")
    parser.add_argument(
        "--simulated", action="store_true", help="Run on the simulated runtime; files go to --out only."
    )
    parser.add_argument("--list", action="store_true", help="Print the steps and exit.")
    options = parser.parse_args()
    unknown = {*options.again, *options.only} - {*STEPS, "all"}
    if unknown:
        parser.error(f"unknown step {', '.join(sorted(unknown))}; steps are {', '.join(STEPS)}")
    if options.list:
        print("\n".join(f"{step.name:16} {step.estimate_s:4} s  {step.question}" for step in STEPS.values()))
        return 0
    if options.simulated and options.out and options.out.resolve() == RESULTS:
        parser.error("simulated answers are not written to benchmarks/gpu: choose another --out")
    folder = options.out or (Path(tempfile.mkdtemp(prefix="trtkit-gpu-")) if options.simulated else RESULTS)
    scratch = (
        options.scratch or Path(tempfile.gettempdir()) / f"trtkit-gpu-{'simulated' if options.simulated else 'kit'}"
    )
    steps = [
        step
        for step in STEPS.values()
        if (step.is_simulated or not options.simulated) and (not options.only or step.name in options.only)
    ]
    names = frozenset(STEPS if "all" in options.again else options.again)
    place = SIMULATED if options.simulated else gpu_name(parser)
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


def gpu_name(parser: argparse.ArgumentParser) -> str:
    """Return the GPU's name. Exits without one."""
    import torch

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
