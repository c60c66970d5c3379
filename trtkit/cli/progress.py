"""Show and log a job's events while it runs: a live bar on a terminal, plain lines elsewhere."""

from __future__ import annotations

import contextlib
import logging
import sys
import time
from typing import TYPE_CHECKING

from rich.progress import BarColumn, Progress, ProgressColumn, SpinnerColumn, Task, TextColumn, TimeElapsedColumn
from rich.text import Text

from trtkit.cli import visible
from trtkit.cli.options import is_quiet, is_verbose
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
    details: set[str] = set()
    with _shown_on(console) as show:

        def on_event(event: Event) -> None:
            _log(event, details)
            show(event)

        yield new_runner(on_event)


@contextlib.contextmanager
def show_events() -> Iterator[Listener]:
    """Yield a listener that shows events of work in this process; everything goes to stderr."""
    console = visible.console(stderr=True, quiet=is_quiet() or is_verbose())
    with _shown_on(console) as show:
        yield show


@contextlib.contextmanager
def _shown_on(console: Console) -> Iterator[Listener]:
    """Yield a listener that shows events: a bar only if the cursor can move, whatever FORCE_COLOR is."""
    if console.quiet or not sys.stderr.isatty() or console.is_dumb_terminal:
        yield _Lines(console)
        return
    columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(30), TimeElapsedColumn(), _Left())
    with Progress(*columns, console=console, transient=True) as progress:
        yield _Bar(progress)


def _log(event: Event, details: set[str]) -> None:
    """Log phases and steps. details: those already in the log."""
    if isinstance(event, Phase):
        _LOG.info("%s", event.name)
    elif isinstance(event, Step):
        _LOG.info("%s", _step(event).strip())
    elif isinstance(event, Advance) and event.detail and _name(event) not in details:
        details.add(_name(event))
        _LOG.info("%s", _name(event))


class _Left(ProgressColumn):
    """Progress of a phase, and its estimated remaining time if its total is known."""

    max_refresh = 0.5

    def render(self, task: Task) -> Text:
        """Return `12/40, 1:05 left, 80 tokens/s`."""
        if not task.total:
            return Text("")
        return Text(_share(task.completed, task.total, task.time_remaining, task.fields["rate"]))


_EVERY_S = 30.0
"""Seconds between lines of a phase with a total, if there is no progress bar."""


class _Lines:
    """Prints each phase and step as a line, and the progress of a long phase at intervals."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._started = self._phase_started = self._printed = time.monotonic()
        self._phase = self._detail = ""
        self._begun_at = 0

    def __call__(self, event: Event) -> None:
        if isinstance(event, Phase):
            self._begin(event.name)
            self._print(event.name)
        elif isinstance(event, Advance):
            if event.name != self._phase:
                self._begin(event.name, event.done)
            is_new = event.detail not in {"", self._detail}
            now, self._detail = time.monotonic(), event.detail
            if is_new or (event.total and now - max(self._printed, self._phase_started) >= _EVERY_S):
                done = event.done - self._begun_at
                seconds = (now - self._phase_started) * (event.total - event.done) / done if done > 0 else None
                self._print(f"{_name(event)} {_share(event.done, event.total, seconds, event.rate)}")
        elif isinstance(event, Step):
            self._console.print(_step(event), markup=False, highlight=False, soft_wrap=True)

    def _begin(self, phase: str, done: int = 0) -> None:
        self._phase, self._phase_started, self._begun_at = phase, time.monotonic(), done

    def _print(self, text: str) -> None:
        self._printed = time.monotonic()
        self._console.print(f"[{self._printed - self._started:6.1f} s] {text}", markup=False, highlight=False)


class _Bar:
    """Keeps one bar for the current phase at the bottom and prints steps above it."""

    def __init__(self, progress: Progress) -> None:
        self._progress, self._name = progress, "start"
        self._task = progress.add_task(self._name, total=None)

    def __call__(self, event: Event) -> None:
        if isinstance(event, Phase | Advance) and event.name != self._name:
            self._progress.remove_task(self._task)  # a restarted bar gets its own clock and estimate
            self._name = event.name
            self._task = self._progress.add_task(event.name, total=None, rate="")
        if isinstance(event, Advance):
            total = event.total or None
            self._progress.update(
                self._task, description=_name(event), completed=event.done, total=total, rate=event.rate
            )
        elif isinstance(event, Step):
            self._progress.console.print(_step(event), markup=False, highlight=False)


def _share(done: float, total: float, seconds_left: float | None, rate: str = "") -> str:
    """Return the progress, the remaining time if it can be estimated, and the rate."""
    parts = [f"{done:.0f}/{total:.0f}"]
    if seconds_left is not None:
        minutes, seconds = divmod(round(seconds_left), 60)
        parts.append(f"{minutes}:{seconds:02} left")
    return ", ".join(parts + [rate] * bool(rate))


def _name(event: Advance) -> str:
    return f"{event.name} {event.detail}".rstrip()


def _step(event: Step) -> str:
    return f"  {event.name:<13} {event.detail} ({event.seconds:.1f} s)"
