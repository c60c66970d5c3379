"""Say where TensorRT was when its process died."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from trtkit.errors import BuildError, SourceError, TrtkitError
from trtkit.jobs.child import ChildCrashError, run_job
from trtkit.jobs.trt_log import error_lines, last_lines, last_parsed_node

if TYPE_CHECKING:
    from collections.abc import Mapping

_OUT_OF_MEMORY = "SIGKILL"


def explain_crash(crash: ChildCrashError, arguments: Mapping[str, Any]) -> TrtkitError:
    """Turn a dead child into an error that names the last node or phase known.

    Where TensorRT was parsing or building, the same job runs once more with its most talkative log.
    """
    if crash.cause == _OUT_OF_MEMORY:
        return BuildError(
            f"the process of job `{crash.job}` was killed, as the system does when memory runs out",
            fix="free memory, or build on a machine with more",
        )
    if crash.job not in {"compile", "describe"}:
        doing = "reading the model" if crash.job in {"digest", "prepare"} else "the work"
        return SourceError(f"{doing} died with {crash.cause}: {last_lines(crash.log, 3)}", f"job {crash.job}")
    phase = {"name": "parse"}
    log = _rerun_verbosely(crash, arguments, phase)
    node = last_parsed_node(log)
    doing = f"while parsing {node}" if phase["name"] == "parse" else "while building"
    said = error_lines(log)
    last = f"; TensorRT's last error: {said[-1]}" if said else f"; last log line: {last_lines(log, 1)}"
    after = f", the last node parsed was {node}" if phase["name"] != "parse" and node else ""
    return BuildError(
        f"TensorRT died with {crash.cause} {doing}{after}{last}",
        fix="replace that part of the model; `trtkit inspect` on parts of it narrows it down",
    )


def _rerun_verbosely(crash: ChildCrashError, arguments: Mapping[str, Any], phase: dict[str, Any]) -> str:
    """Run the job again with a verbose log; keep the phase it was in. Returns the log."""

    def note(event: dict[str, Any]) -> None:
        if event["event"] == "phase":
            phase["name"] = event["name"]

    try:
        run_job(crash.job, {**arguments, "severity": "VERBOSE"}, note)
    except ChildCrashError as again:
        return again.log
    except TrtkitError:
        pass
    return crash.log
