"""The child's side of a job: read the request from stdin, report events as JSON lines, answer once.

Run as `python -P -m trtkit.jobs.worker FUNCTION REQUEST FD LOG [SEVERITY]`; `child.py` is its only caller. FUNCTION and
REQUEST, the request's type, are `module:name`. -P keeps the current folder off sys.path: a file there named like a
package must not be imported instead.
"""

import gc
import json
import os
import sys
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

from trtkit.jobs.events import event_to_json, ignore
from trtkit.jobs.faults import error_to_json, internal_error, user_error
from trtkit.jobs.job import JobContext, load
from trtkit.jobs.json_form import from_json, to_json
from trtkit.threads import wait_briefly

# torch's imports make so many objects that Python's default thresholds spend a sixth of a short job on cycle detection.
_GC_THRESHOLDS = (20_000, 50, 100)


def main(function: str, request: str, events: int, context: JobContext) -> None:
    """Run the job of `function` and answer on the file descriptor `events`."""
    data = json.loads(sys.stdin.readline())
    wait_briefly()
    gc.set_threshold(*_GC_THRESHOLDS)
    threading.Thread(target=exit_with_parent, daemon=True).start()

    def send(event: dict[str, Any]) -> None:
        os.write(events, json.dumps(event).encode() + b"\n")

    send(answer(function, request, data, replace(context, report=lambda event: send(event_to_json(event)))))


def answer(function: str, request: str, data: Any, context: JobContext) -> dict[str, Any]:
    """Run the job; return its result, or its error, as JSON. data: the request as JSON."""
    try:
        result = load(function)(from_json(load(request), data), context)
        return {"event": "result", "result": to_json(result)}
    except Exception as error:
        fault = user_error(error, str(data.get("folder", "")))
        if fault is None:
            sys.stdout.flush()
            sys.stderr.flush()
            fault = internal_error(error, function.partition(":")[2], context.log.read_text(errors="replace"))
        return {"event": "error", **error_to_json(fault)}


def exit_with_parent() -> None:
    """Wait for the end of stdin, which means that the parent has exited, then exit immediately.

    It reads the descriptor directly: a thread blocked in `sys.stdin` holds a lock that Python waits for at exit, and
    then aborts.
    """
    while os.read(0, 1):
        pass
    os._exit(1)


if __name__ == "__main__":
    words = sys.argv[1:]
    main(words[0], words[1], int(words[2]), JobContext(ignore, Path(words[3]), *words[4:]))
