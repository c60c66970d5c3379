"""Show a job's events while it runs: a live bar on a terminal, plain lines elsewhere; and log them."""

from __future__ import annotations

import contextlib
import logging
import sys
import time
from typing import TYPE_CHECKING

from rich.progress import BarColumn, Progress, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn

from trtkit.cli import visible
from trtkit.cli.options import is_verbose
from trtkit.jobs.events import Phase, Step
from trtkit.jobs.events import Progress as Advance
from trtkit.jobs.runner import new_runner

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.console import Console

    from trtkit.jobs.events import Event, Listener
    from trtkit.jobs.runner import Runner

_LOG = logging.getLogger("trtkit.progress")


@contextlib.contextmanager
def show_progress(*, quiet: bool = False) -> Iterator[Runner]:
    """Yield a runner whose events are shown; everything goes to stderr."""
    console = visible.console(stderr=True, quiet=quiet or is_verbose())
    with _shown_on(console) as show:

        def on_event(event: Event) -> None:
            _log(event)
            show(event)

        yield new_runner(on_event)


@contextlib.contextmanager
def _shown_on(console: Console) -> Iterator[Listener]:
    """Yield what shows events: a bar only where a cursor can move, whatever FORCE_COLOR says."""
    if console.quiet or not sys.stderr.isatty() or console.is_dumb_terminal:
        yield _Lines(console)
        return
    columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(30), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        yield _Bar(progress, progress.add_task("start", total=None))


def _log(event: Event) -> None:
    """Log what has begun or is done."""
    if isinstance(event, Phase):
        _LOG.info("%s", event.name)
    elif isinstance(event, Step):
        _LOG.info("%s", _step(event).strip())


class _Lines:
    """Print each step as a line."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._started = time.monotonic()

    def __call__(self, event: Event) -> None:
        if isinstance(event, Phase):
            self._console.print(
                f"[{time.monotonic() - self._started:6.1f} s] {event.name}", markup=False, highlight=False
            )
        elif isinstance(event, Step):
            self._console.print(_step(event), markup=False, highlight=False, soft_wrap=True)


class _Bar:
    """Keep one bar at the bottom and print steps above it."""

    def __init__(self, progress: Progress, task: TaskID) -> None:
        self._progress, self._task = progress, task

    def __call__(self, event: Event) -> None:
        if isinstance(event, Phase):
            self._progress.update(self._task, description=event.name, completed=0, total=None)
        elif isinstance(event, Advance):
            self._progress.update(self._task, description=event.name, completed=event.done, total=event.total)
        elif isinstance(event, Step):
            self._progress.console.print(_step(event), markup=False, highlight=False)


def _step(event: Step) -> str:
    return f"  {event.name:<13} {event.detail} ({event.seconds:.1f} s)"
