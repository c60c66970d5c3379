"""The child's side of a job: read arguments from stdin, report events as JSON lines, answer once.

Run as `python -P -m trtkit.jobs.worker JOB FD`; `run_job` is its only caller. -P keeps the current folder off
sys.path: a file there called like a package must not be imported in its place.
"""

from __future__ import annotations

import errno
import gc
import importlib
import json
import os
import sys
import threading
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trtkit.errors import BundleError, TrtkitError
from trtkit.extras import missing_package
from trtkit.threads import wait_briefly

if TYPE_CHECKING:
    from collections.abc import Callable

Json = dict[str, Any]

# torch's imports make so many objects that Python's own thresholds spend a sixth of a short job on looking for cycles.
_GC_THRESHOLDS = (20_000, 50, 100)
_NO_SPACE = {errno.ENOSPC, errno.EDQUOT}

# Job name to the function that does it: (arguments, report) -> result. Layers above name theirs `module:function`.
JOBS = {
    "digest": "trtkit.engine.digest:digest",
    "prepare": "trtkit.engine.prepare:prepare",
    "describe": "trtkit.engine.compile:describe_only",
    "compile": "trtkit.engine.compile:compile_engine",
    "diagnose": "trtkit.engine.diagnose:diagnose",
}


def main(job: str, events: int) -> None:
    """Do `job` and answer on the file descriptor `events`."""
    arguments = json.loads(sys.stdin.readline())
    wait_briefly()
    gc.set_threshold(*_GC_THRESHOLDS)
    threading.Thread(target=_exit_with_parent, daemon=True).start()

    def send(event: Json) -> None:
        os.write(events, json.dumps(event).encode() + b"\n")

    send(_answer(job, arguments, send))


def _answer(job: str, arguments: Json, send: Callable[[Json], None]) -> Json:
    """Return the job's result, or its error as data."""
    try:
        module, _, function = JOBS.get(job, job).partition(":")
        result = getattr(importlib.import_module(module), function)(arguments, send)
    except TrtkitError as error:
        return {"event": "error", **error.to_json()}
    except ImportError as error:
        missing = missing_package(error)
        return _internal(error, job, arguments) if missing is None else {"event": "error", **missing.to_json()}
    except OSError as error:
        what = f"cannot write or read: {(error.strerror or str(error)).lower()}"
        fix = "free some space, or choose another `--out`" if error.errno in _NO_SPACE else ""
        return {
            "event": "error",
            **BundleError(what, str(error.filename or arguments.get("folder", "")), fix).to_json(),
        }
    except Exception as error:
        return _internal(error, job, arguments)
    return {"event": "result", "result": result}


def _internal(error: Exception, job: str, arguments: Json) -> Json:
    """Return a fault of trtkit's own with all that the child printed."""
    traceback.print_exception(error)
    sys.stderr.flush()
    log = Path(arguments["log_path"]).read_text(errors="replace")
    return {"event": "error", "error": "internal", "what": repr(error), "where": f"job {job}", "fix": "", "log": log}


def _exit_with_parent() -> None:
    """Wait for the end of stdin, which comes when the parent is gone, then leave at once.

    Reads the descriptor itself: a thread inside `sys.stdin` holds a lock that Python waits for at exit, then aborts.
    """
    while os.read(0, 1):
        pass
    os._exit(1)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
