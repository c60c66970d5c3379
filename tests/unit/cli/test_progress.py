"""How far a phase is, on a terminal and in a pipe."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import Progress

from trtkit.cli import progress
from trtkit.jobs.events import Phase
from trtkit.jobs.events import Progress as Advance

if TYPE_CHECKING:
    import pytest


class Clock:
    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def test_a_bar_of_a_new_phase_has_its_own_total_and_estimate() -> None:
    clock = Clock()
    console = Console(file=io.StringIO())
    bars = Progress(progress._Left(), console=console, get_time=clock)
    show = progress._Bar(bars)
    show(Phase("load"))
    assert str(progress._Left().render(bars.tasks[0])) == ""
    show(Advance("perplexity", 0, 40))
    for done in (1, 2, 3, 4):
        clock.now_s += 5
        show(Advance("perplexity", done, 40))
    (task,) = bars.tasks
    assert (task.description, str(progress._Left().render(task))) == ("perplexity", "4/40, 3:00 left")
    show(Phase("write"))
    (task,) = bars.tasks
    assert (task.description, task.total, task.completed) == ("write", None, 0)


def test_a_pipe_hears_of_a_long_phase_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, out = Clock(), io.StringIO()
    monkeypatch.setattr(progress.time, "monotonic", clock)
    show = progress._Lines(Console(file=out))
    show(Phase("perplexity"))
    for done in range(1, 13):
        clock.now_s += 10
        show(Advance("perplexity", done, 12))
    assert out.getvalue().splitlines() == [
        "[   0.0 s] perplexity",
        "[  30.0 s] perplexity 3/12, 1:30 left",
        "[  60.0 s] perplexity 6/12, 1:00 left",
        "[  90.0 s] perplexity 9/12, 0:30 left",
        "[ 120.0 s] perplexity 12/12, 0:00 left",
    ]


def test_a_pipe_hears_of_every_detail_and_a_phase_that_is_resumed_has_its_own_estimate(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock, out = Clock(), io.StringIO()
    monkeypatch.setattr(progress.time, "monotonic", clock)
    show = progress._Lines(Console(file=out))
    show(Advance("inner", 0, 3))
    for done, detail in ((6, "batch 1"), (7, "batch 1"), (8, "batch 8")):
        show(Advance("measure", done, 9, detail))
        clock.now_s += 10
    assert out.getvalue().splitlines() == [
        "[   0.0 s] measure batch 1 6/9",
        "[  20.0 s] measure batch 8 8/9, 0:10 left",
    ]


def test_a_phase_without_a_total_says_nothing_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, out = Clock(), io.StringIO()
    monkeypatch.setattr(progress.time, "monotonic", clock)
    show = progress._Lines(Console(file=out))
    for done in (1, 2):
        clock.now_s += 60
        show(Advance("tactics", done, 0))
    assert out.getvalue() == ""
