"""Messages next to a result: on stderr and in the log."""

import os

import click

from trtkit.cli.options import is_logged, is_quiet, is_verbose
from trtkit.cli.visible import echo


def say(text: str) -> None:
    """Tell what happens, unless --quiet; of several ranks that a launcher started, the first speaks."""
    _tell(text, "info", is_shown=not is_quiet() and os.environ.get("RANK", "0") == "0")


def warn(text: str) -> None:
    """Warn."""
    _tell(text, "warning", is_shown=True)


def _tell(text: str, level: str, *, is_shown: bool) -> None:
    """Log a message, and show it where the log is not on stderr anyway."""
    ctx = click.get_current_context(silent=True)
    if ctx is not None and is_logged(ctx):
        import logging

        getattr(logging.getLogger("trtkit.cli"), level)("%s", text)
    if is_shown and not is_verbose():
        echo(text, err=True)
