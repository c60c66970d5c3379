"""Say where TensorRT was when its process died."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trtkit.errors import BuildError, SourceError, TrtkitError
from trtkit.jobs.child import ChildCrashError, run_child
from trtkit.jobs.events import Phase
from trtkit.jobs.trt_log import error_lines, last_lines, last_parsed_node

if TYPE_CHECKING:
    from trtkit.jobs.events import Event
    from trtkit.jobs.job import Job, Request, Result

_OUT_OF_MEMORY = "SIGKILL"


def explain_crash(crash: ChildCrashError, job: Job[Request, Result], request: Request) -> TrtkitError:
    """Turn a dead child into an error that names the phase it was in and the last node, if they are known.

    If TensorRT was at work, the same job runs once more with its most talkative log.
    """
    if crash.cause == _OUT_OF_MEMORY:
        return BuildError(
            f"the process of job `{job.name}` was killed, as the system does when memory runs out",
            fix="free memory, or build on a machine with more",
        )
    if not job.uses_tensorrt:
        return SourceError(f"{job.activity} died with {crash.cause}: {last_lines(crash.log, 3)}", f"job {job.name}")
    phase, log = _rerun_verbosely(crash, job, request)
    node, errors = last_parsed_node(log), error_lines(log)
    if phase == "parse":
        place = f"while parsing {node}"
    else:
        place = "while building" if phase == "build" else f"in the phase `{phase}`"
        place += f", the last node parsed was {node}" if node else ""
    last = f"; TensorRT's last error: {errors[-1]}" if errors else ""
    if log.strip() and not errors:
        last = f"; last log line: {last_lines(log, 1)}"
    return BuildError(
        f"TensorRT died with {crash.cause} {place}{last}",
        fix="replace that part of the model; `trtkit inspect` on parts of it narrows it down",
    )


def _rerun_verbosely(crash: ChildCrashError, job: Job[Request, Result], request: Request) -> tuple[str, str]:
    """Do the job again with a verbose log; return the last phase that it began, and its log."""
    phases = ["start"]

    def note(event: Event) -> None:
        if isinstance(event, Phase):
            phases.append(event.name)

    try:
        run_child(job, request, note, "VERBOSE")
    except ChildCrashError as again:
        return phases[-1], again.log
    except TrtkitError:
        pass
    return phases[-1], crash.log
