"""Runs one step in its own process: `python -m tests.gpu.child STEP FOLDER SCRATCH [--simulated]`."""

from __future__ import annotations

import sys
import time
import traceback
from dataclasses import replace
from pathlib import Path

from tests.gpu.answers import Skipped, ended, new_record, write
from tests.gpu.place import SIMULATED, Place, open_place, versions
from tests.gpu.rule import computed_by, why_skipped
from tests.gpu.steps import STEPS


def run_step(name: str, place: Place, folder: Path) -> None:
    """Run a step, writing its file after every answer."""
    step = STEPS[name]
    by = computed_by(replace(step, simulates=place.is_simulated and step.needs == "engines"), place.machine)
    record = new_record(step, place.name, versions(has_gpu=place.has_gpu), by)
    started = time.perf_counter()
    write(folder, record)
    try:
        needs_builder = place.is_simulated and not step.simulates and step.needs == "engines"
        if reason := place.machine.fault if needs_builder else why_skipped(step, place.machine):
            raise Skipped(reason)
        for answer in step.run(place):
            seconds = time.perf_counter() - started
            record = replace(record, answers=(*record.answers, answer), seconds=seconds)
            write(folder, record)
            print(f"  {step.name}: {answer}", flush=True)
        record = ended(record, "done")
    except Skipped as skipped:
        record = replace(ended(record, "skipped", str(skipped)), computed_by="")
    except Exception as error:
        traceback.print_exc()
        record = ended(record, "failed", f"{type(error).__name__}: {error}")
    write(folder, replace(record, seconds=time.perf_counter() - started))


def main(words: list[str]) -> None:
    """Run the named step."""
    name, folder, scratch = words[:3]
    on_host = f"--{SIMULATED}" in words
    run_step(name, open_place(Path(scratch), on_host=on_host, simulates=STEPS[name].simulates), Path(folder))


if __name__ == "__main__":
    main(sys.argv[1:])
