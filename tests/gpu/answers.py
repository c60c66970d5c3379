"""A step's record: a JSON file, rewritten after every answer."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from tests.gpu.step import Answer, Step

FINISHED = ("done", "failed", "died", "timed out")
"""States of steps that are not retried. The other states are `running`, `cut off` and `skipped`."""


class Skipped(Exception):  # noqa: N818
    """A step cannot be answered on this machine; the message says why."""


@dataclass(frozen=True)
class Record:
    """A step's file. place: the GPU's name, or `simulated`. error: why the step did not finish.

    computed_by: TensorRT or its simulation, on a GPU or a CPU.
    """

    step: str
    question: str
    place: str
    command: str
    versions: Mapping[str, str]
    measured_at: str
    state: str = "running"
    seconds: float = 0.0
    error: str = ""
    answers: tuple[Answer, ...] = ()
    computed_by: str = ""

    @property
    def is_finished(self) -> bool:
        """Whether the step is not retried."""
        return self.state in FINISHED

    @property
    def refuted(self) -> tuple[Answer, ...]:
        """Answers that contradict the code's assumptions."""
        return tuple(answer for answer in self.answers if answer.get("holds") is False)


def new_record(step: Step, place: str, versions: Mapping[str, str], computed_by: str = "") -> Record:
    """Return the record of a step that starts."""
    how = " --simulated-tensorrt" if step.simulates else " --simulated" if place == "simulated" else ""
    command = f"python -m tests.gpu --again {step.name}{how}"
    now = datetime.now(UTC).isoformat(timespec="seconds")
    return Record(step.name, step.question, place, command, dict(versions), now, computed_by=computed_by)


def path_of(folder: Path, step: str) -> Path:
    """Return the path of a step's file."""
    return folder / f"{step}.json"


def write(folder: Path, record: Record) -> None:
    """Write the file atomically, since the process may die at any time."""
    folder.mkdir(parents=True, exist_ok=True)
    fields = asdict(record)
    fields["answers"] = [{key: _finite(value) for key, value in answer.items()} for answer in record.answers]
    partial = folder / f".{record.step}"
    partial.write_text(json.dumps(fields, indent=1) + "\n", encoding="utf-8")
    partial.replace(path_of(folder, record.step))


def read(path: Path) -> Record:
    """Read a file."""
    fields: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return Record(**{**fields, "answers": tuple(fields["answers"])})


def read_all(folder: Path) -> list[Record]:
    """Read all files of a folder, by name."""
    return [read(path) for path in sorted(folder.glob("*.json"))]


def ended(record: Record, state: str, error: str = "") -> Record:
    """Return the record of a step that has ended."""
    return replace(record, state=state, error=error)


def _finite(value: Any) -> Any:
    """Round to six digits and replace NaN and infinity, which JSON lacks."""
    if not isinstance(value, float):
        return value
    return float(f"{value:.6g}") if math.isfinite(value) else str(value)
