"""The log of `trtkit serve`: lines of its servers and its own, as text or JSON objects, on stderr."""

from __future__ import annotations

import logging
from contextlib import contextmanager
from typing import TYPE_CHECKING, Literal

import click

from trtkit.cli.options import is_verbose
from trtkit.cli.say import JSON_LOG, is_json, record
from trtkit.cli.visible import echo
from trtkit.errors import TrtkitError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

LogFormat = Literal["text", "json"]


def log_as(form: LogFormat) -> None:
    """Make the current command log in a form."""
    click.get_current_context().meta[JSON_LOG] = form == "json"


def server_log(is_information: Callable[[str], bool], *, quiet: bool) -> Callable[[str, str], None]:
    """Return a function that shows a process's line.

    With --quiet it shows warnings only; with --verbose none, since the log on stderr has them all.
    """
    log, is_shown, as_json = logging.getLogger("trtkit.server"), not is_verbose(), is_json()

    def show(process: str, line: str) -> None:
        text = f"{process}: {line}" if process else line
        log.info("%s", text)
        if is_shown and not (quiet and is_information(line)):
            echo(record(process or "triton", line) if as_json else text, err=True)

    return show


@contextmanager
def errors_in_log() -> Iterator[None]:
    """Log the error that ends the command if the log is JSON: a collector reads no other lines."""
    try:
        yield
    except TrtkitError as error:
        if not is_json():
            raise
        echo(record("trtkit", str(error), "ERROR"), err=True)
        raise SystemExit(error.exit_code) from None
