"""The log of a command: every step and message with its time, including those of child processes and TensorRT."""

import contextlib
import logging
import os
import shlex
import sys
import time
from collections.abc import Sequence

import click

from trtkit.cli.visible import visible
from trtkit.errors import TrtkitError
from trtkit.version import __version__

_FORMAT = "%(asctime)s.%(msecs)03d %(levelname)-7s %(name)s: %(message)s"
_LOG = logging.getLogger("trtkit")
_KEY = "--api-key"


class _Visible(logging.Formatter):
    """Formats lines without terminal control characters."""

    def format(self, record: logging.LogRecord) -> str:
        return visible(super().format(record))


class _LogFile(logging.FileHandler):
    """A log file that stops when the disk is full, rather than print a traceback for every line."""

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802
        """Report once why logging stops."""
        error = sys.exc_info()[1]
        if not isinstance(error, OSError):
            super().handleError(record)
            return
        logging.getLogger().removeHandler(self)
        reason = (error.strerror or str(error)).lower()
        click.echo(f"the log ends here: {self.baseFilename}: {reason}", err=True)

    def close(self) -> None:
        """Close the file; what no longer fits is dropped."""
        with contextlib.suppress(OSError):
            super().close()


def log_to_file(ctx: click.Context, path: str) -> None:
    """Append to `path` until the command ends. Raises TrtkitError if the file cannot be written."""
    try:
        handler = _LogFile(path, encoding="utf-8", errors="backslashreplace")
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise TrtkitError(f"cannot be written: {reason}", f"--log-file {path}", "choose a writable file") from None
    _attach(ctx, handler)


def log_to_stderr(ctx: click.Context) -> None:
    """Show the log on stderr until the command ends."""
    _attach(ctx, logging.StreamHandler(sys.stderr))


def _attach(ctx: click.Context, handler: logging.Handler) -> None:
    """Add a handler to the root logger; messages of other libraries keep their own levels."""
    handler.setFormatter(_Visible(_FORMAT, "%Y-%m-%d %H:%M:%S"))
    root, level, started = logging.getLogger(), _LOG.level, time.monotonic()
    root.addHandler(handler)
    _LOG.setLevel(logging.DEBUG)
    logging.captureWarnings(capture=True)

    def close() -> None:
        _LOG.debug("process %d ended after %.2f s", os.getpid(), time.monotonic() - started)
        root.removeHandler(handler)
        _LOG.setLevel(level)
        logging.captureWarnings(capture=bool(root.handlers))
        handler.close()

    ctx.find_root().call_on_close(close)
    words: Sequence[str] = ctx.find_root().obj or ()
    _LOG.info("trtkit %s: %s", __version__, shlex.join(["trtkit", *without_keys(words)]))
    _LOG.debug("process %d, Python %s in %s", os.getpid(), sys.version.split()[0], os.getcwd())  # noqa: PTH109


def without_keys(words: Sequence[str]) -> list[str]:
    """Return the words of a command line with API keys replaced by `...`."""
    shown = [f"{_KEY}=..." if word.startswith(f"{_KEY}=") else word for word in words]
    return ["..." if number and words[number - 1] == _KEY else word for number, word in enumerate(shown)]


def log_end(stop: BaseException) -> None:
    """Log how a command ended if it did not simply return."""
    if isinstance(stop, SystemExit | click.exceptions.Exit):
        code = stop.code if isinstance(stop, SystemExit) else stop.exit_code
        _LOG.info("exit code %s", code or 0)
    elif isinstance(stop, KeyboardInterrupt | click.Abort):
        _LOG.error("cancelled")
    elif isinstance(stop, click.ClickException):
        _LOG.error("%s", stop.format_message())
    elif isinstance(stop, TrtkitError):
        _LOG.error("%s", stop)
    else:
        _LOG.error("internal error", exc_info=stop)
