"""Messages in addition to a result: on stderr and in the log."""

import json
import os
import re
from datetime import UTC, datetime
from typing import Literal

import click

from trtkit.cli.options import is_logged, is_quiet, is_verbose
from trtkit.cli.visible import echo

Level = Literal["INFO", "WARNING", "ERROR"]
JSON_LOG = "trtkit.json_log"
"""Key of a context's `meta`: whether messages are JSON objects."""


# Dynamo's lines start with time and level; Triton's with a letter and the date, `I1128 09:30:00.123456 77 `.
_DYNAMO = re.compile(r"^(\d{4}-\S+Z)\s+(TRACE|DEBUG|INFO|WARN|ERROR)\s+")
_TRITON = re.compile(r"^([IWEF])\d{4} [\d:.]+ \d+ ")
_LEVELS: dict[str, Level] = {"WARN": "WARNING", "ERROR": "ERROR", "W": "WARNING", "E": "ERROR", "F": "ERROR"}


def say(text: str) -> None:
    """Print a message, unless --quiet; of several launched ranks, only the first prints it."""
    _tell(text, "info", is_shown=not is_quiet() and os.environ.get("RANK", "0") == "0")


def warn(text: str) -> None:
    """Warn."""
    _tell(text, "warning", is_shown=True)


def _tell(text: str, level: str, *, is_shown: bool) -> None:
    """Log a message, and print it if the log is not on stderr anyway."""
    ctx = click.get_current_context(silent=True)
    if ctx is not None and is_logged(ctx):
        import logging

        getattr(logging.getLogger("trtkit.cli"), level)("%s", text)
    if is_shown and not is_verbose():
        if is_json():
            text = record("trtkit", text, "WARNING" if level == "warning" else "INFO")
        echo(text, err=True)


def is_json() -> bool:
    """Whether the current command logs JSON objects."""
    context = click.get_current_context(silent=True)
    return context is not None and bool(context.meta.get(JSON_LOG))


def record(process: str, line: str, level: Level | None = None) -> str:
    """Return a line as a JSON object, with the time and level stated in the line."""
    match = _DYNAMO.match(line)
    time = match[1] if match else datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    stated = match[2] if match else triton[1] if (triton := _TRITON.match(line)) else ""
    message = line[match.end() :] if match else line
    fields = {"time": time, "level": level or _LEVELS.get(stated, "INFO"), "process": process, "message": message}
    return json.dumps(fields)
