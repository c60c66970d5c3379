"""Writes docs/gpu.md from the answers in benchmarks/gpu: `python -m tests.gpu.page`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from tests.gpu.answers import read_all
from tests.gpu.steps import STEPS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.gpu.answers import Record
    from tests.gpu.step import Value

ROOT = Path(__file__).parents[2]
PAGE, RESULTS = ROOT / "docs" / "gpu.md", ROOT / "benchmarks" / "gpu"
HEAD = """\
# What has run on a GPU

Written by `make gpu-report` from the files in `benchmarks/gpu/`, one for each step of the kit in `tests/gpu/`.
Every time is a median.
"""
RULE = """
## What runs where

| compute capability | GPUs | TensorRT-RTX | full TensorRT |
| --- | --- | --- | --- |
| 7.5 | T4, RTX 20 | yes | yes, if the release supports it |
| 8.0 | A100 | untested: its loader takes it, NVIDIA's support matrices do not list it | yes |
| 8.6, 8.9 | A10, RTX 30, L4, L40S, RTX 40 | yes | yes |
| 9.0, 10.x | H100, H200, B200 | no | yes |
| 12.x | RTX 50, RTX PRO Blackwell | yes | yes |

By NVIDIA's support matrices and the table in TensorRT-RTX's loader; no GPU has confirmed it. Where TensorRT-RTX does
not run, the kit asks what needs no TensorRT: copies, kernels, sampling, other engines, and trtkit's own runtime with
TensorRT simulated by torch on the GPU. `python -m tests.gpu --what-if 9.0` prints what would run on such a GPU.
"""
NOTHING = """
**Nothing has run on a GPU yet.** Everything else in these docs was tried on a CPU: TensorRT-RTX builds real engines
there, the reference executor computes their networks, and a simulated TensorRT runtime runs the code that drives
engines.
"""
HOW = """
## How to run it

On the machine with the GPU, in a clone with `make install`, or with the kit, which needs no network:

```console
make gpu-kit                              # here: build/gpu-kit/1, 2, ...
python3 1/unpack.py ~/trtkit-gpu          # there, for each piece; the last one prints the next line
. ~/trtkit-gpu/env.sh && cd ~/trtkit-gpu/tree && python3 -m tests.gpu --minutes 8
```

Then copy `benchmarks/gpu/` back and run `make gpu-report`. `python -m tests.gpu --simulated` runs the same steps
without a GPU, on small models; its answers are kept out of `benchmarks/gpu/`. `--simulated-tensorrt` runs trtkit's
runtime over the simulated TensorRT, whose layers torch computes: on CUDA with real streams, events, graphs and pinned
memory, without a GPU on host memory. It needs torch and the kit's bundles, and no TensorRT.
"""


def page(records: Sequence[Record]) -> str:
    """Return docs/gpu.md."""
    known = {record.step: record for record in records}
    parts = [HEAD, "" if records else NOTHING, _summary(known), RULE, HOW]
    parts += [_section(known[name]) for name in STEPS if name in known]
    return "".join(parts)


def _summary(records: dict[str, Record]) -> str:
    rows = ["", "| step | question | computed by | state | refuted |", "| --- | --- | --- | --- | --- |"]
    for step in STEPS.values():
        record = records.get(step.name)
        state, refuted = ("not run", "") if record is None else (record.state, str(len(record.refuted) or "none"))
        name = step.name if record is None else f"[{step.name}](#{step.name})"
        by = "" if record is None else record.computed_by
        rows.append(f"| {name} | {step.question} | {by} | {state} | {refuted} |")
    return "\n".join(rows) + "\n"


def _section(record: Record) -> str:
    versions = ", ".join(f"{name} {version}" for name, version in record.versions.items())
    lines = ["", f"## {record.step}", "", f"{record.question} `{record.command}`, {record.measured_at}.", ""]
    lines += [f"{record.place}; {versions}. Computed by: {record.computed_by or 'not known'}."]
    lines += [f"State: {record.state}, after {record.seconds:.0f} s."]
    lines += ["", f"```text\n{record.error}\n```"] if record.error else []
    columns = list(dict.fromkeys(key for answer in record.answers for key in answer))
    if columns:
        lines += ["", f"| {' | '.join(columns)} |", "| --- " * len(columns) + "|"]
        lines += [f"| {' | '.join(_cell(answer.get(key)) for key in columns)} |" for answer in record.answers]
    return "\n".join(lines) + "\n"


def _cell(value: Value) -> str:
    if value is None:
        return ""
    text = f"{value:.4g}" if isinstance(value, float) else str(value)
    return " ".join(text.replace("|", "\\|").split())


def main() -> None:
    """Write the page."""
    PAGE.write_text(page(read_all(RESULTS)), encoding="utf-8")


if __name__ == "__main__":
    main()
