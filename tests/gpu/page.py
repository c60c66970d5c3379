"""Write docs/gpu.md from the answers in benchmarks/gpu: `python -m tests.gpu.page`."""

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
without a GPU, on small models; its answers are kept out of `benchmarks/gpu/`.
"""


def page(records: Sequence[Record]) -> str:
    """Return docs/gpu.md."""
    known = {record.step: record for record in records}
    parts = [HEAD, "" if records else NOTHING, _summary(known), HOW]
    parts += [_section(known[name]) for name in STEPS if name in known]
    return "".join(parts)


def _summary(records: dict[str, Record]) -> str:
    rows = ["", "| step | question | state | refuted |", "| --- | --- | --- | --- |"]
    for step in STEPS.values():
        record = records.get(step.name)
        state, refuted = ("not run", "") if record is None else (record.state, str(len(record.refuted) or "none"))
        name = step.name if record is None else f"[{step.name}](#{step.name})"
        rows.append(f"| {name} | {step.question} | {state} | {refuted} |")
    return "\n".join(rows) + "\n"


def _section(record: Record) -> str:
    versions = ", ".join(f"{name} {version}" for name, version in record.versions.items())
    lines = ["", f"## {record.step}", "", f"{record.question} `{record.command}`, {record.measured_at}.", ""]
    lines += [f"{record.place}; {versions}. State: {record.state}, after {record.seconds:.0f} s."]
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
