"""Pass what a child process prints on to the log, as it is printed."""

from __future__ import annotations

import contextlib
import logging
import threading
from typing import TYPE_CHECKING

from trtkit.jobs.trt_log import level_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_LOG = logging.getLogger("trtkit.child")
# How often a child's file is looked at.
_INTERVAL_S = 0.2


def is_followed() -> bool:
    """Whether somebody keeps the log: then children say more than what their errors need."""
    return _LOG.isEnabledFor(logging.INFO)


@contextlib.contextmanager
def followed(file: Path, job: str) -> Iterator[None]:
    """Log each line that is added to `file` while the block runs, with TensorRT's severity."""
    if not is_followed():
        yield
        return
    _LOG.debug("process of job %s", job)
    is_over = threading.Event()
    thread = threading.Thread(target=_follow, args=(file, is_over), daemon=True)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()


def log_lines(file: Path, job: str) -> None:
    """Log all lines of `file`, in which a job's output is, as `followed` does while a child runs."""
    if is_followed():
        _LOG.debug("process of job %s", job)
        is_over = threading.Event()
        is_over.set()
        _follow(file, is_over)


def _follow(file: Path, is_over: threading.Event) -> None:
    """Log lines until `is_over`, then what is left."""
    rest = b""
    with file.open("rb") as stream:
        while True:
            was_over = is_over.wait(_INTERVAL_S)
            *lines, rest = (rest + stream.read()).split(b"\n")
            for line in (*lines, rest) if was_over else lines:
                text = line.decode(errors="replace").rstrip()
                if text:
                    _LOG.log(level_of(text), "%s", text)
            if was_over:
                return
