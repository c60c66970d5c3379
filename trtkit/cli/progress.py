"""Show a job's events while it runs: a live bar on a terminal, plain lines elsewhere; and log them."""

from __future__ import annotations

import contextlib
import logging
import sys
import time
from typing import TYPE_CHECKING

from rich.progress import BarColumn, Progress, ProgressColumn, SpinnerColumn, Task, TextColumn, TimeElapsedColumn
from rich.text import Text

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
    columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(30), TimeElapsedColumn(), _Left())
    with Progress(*columns, console=console, transient=True) as progress:
        yield _Bar(progress)


def _log(event: Event) -> None:
    """Log what has begun or is done."""
    if isinstance(event, Phase):
        _LOG.info("%s", event.name)
    elif isinstance(event, Step):
        _LOG.info("%s", _step(event).strip())


class _Left(ProgressColumn):
    """How much of a phase is done, and the time that the rest may take, if its total is known."""

    max_refresh = 0.5

    def render(self, task: Task) -> Text:
        """Return `12/40, 1:05 left`."""
        return Text(_share(task.completed, task.total, task.time_remaining) if task.total else "")


_EVERY_S = 30.0
"""Seconds between lines of a phase with a total, if there is no progress bar."""


class _Lines:
    """Print each phase and step as a line, and now and then how far a long phase is."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._started = self._phase_started = self._printed = time.monotonic()
        self._phase = ""

    def __call__(self, event: Event) -> None:
        if isinstance(event, Phase):
            self._begin(event.name)
            self._print(event.name)
        elif isinstance(event, Advance):
            if event.name != self._phase:
                self._begin(event.name)
            now = time.monotonic()
            if event.total and now - max(self._printed, self._phase_started) >= _EVERY_S:
                seconds = (now - self._phase_started) * (event.total / event.done - 1) if event.done else None
                self._print(f"{event.name} {_share(event.done, event.total, seconds)}")
        elif isinstance(event, Step):
            self._console.print(_step(event), markup=False, highlight=False, soft_wrap=True)

    def _begin(self, phase: str) -> None:
        self._phase, self._phase_started = phase, time.monotonic()

    def _print(self, text: str) -> None:
        self._printed = time.monotonic()
        self._console.print(f"[{self._printed - self._started:6.1f} s] {text}", markup=False, highlight=False)


class _Bar:
    """Keep one bar at the bottom, of the phase under way, and print steps above it."""

    def __init__(self, progress: Progress) -> None:
        self._progress, self._name = progress, "start"
        self._task = progress.add_task(self._name, total=None)

    def __call__(self, event: Event) -> None:
        if isinstance(event, Phase | Advance) and event.name != self._name:
            self._progress.remove_task(self._task)  # a bar that is begun anew has its own clock and estimate
            self._name = event.name
            self._task = self._progress.add_task(event.name, total=None)
        if isinstance(event, Advance):
            self._progress.update(self._task, completed=event.done, total=event.total or None)
        elif isinstance(event, Step):
            self._progress.console.print(_step(event), markup=False, highlight=False)


def _share(done: float, total: float, seconds_left: float | None) -> str:
    """Return how much is done, and the time that is left if that can be said."""
    if seconds_left is None:
        return f"{done:.0f}/{total:.0f}"
    minutes, seconds = divmod(round(seconds_left), 60)
    return f"{done:.0f}/{total:.0f}, {minutes}:{seconds:02} left"


def _step(event: Step) -> str:
    return f"  {event.name:<13} {event.detail} ({event.seconds:.1f} s)"
