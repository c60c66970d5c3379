"""Jobs of tests: what they print, raise and change."""

from __future__ import annotations

import importlib
import os
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from trtkit.errors import TrtkitError
from trtkit.jobs.events import Phase, Step
from trtkit.jobs.job import Job

if TYPE_CHECKING:
    from trtkit.jobs.job import JobContext


@dataclass(frozen=True)
class Words:
    """Words and a folder with the user's module `theirs`."""

    words: tuple[str, ...]
    folder: Path | None = None


class TooManyWordsError(TrtkitError):
    """An error of a module of its own."""


def say(request: Words, context: JobContext) -> Words:
    """Print the words by Python and by the descriptor below; return what the log then holds."""
    for word in request.words:
        print(word, flush=True)
        os.write(2, f"{word} below\n".encode())
        context.report(Phase(word))
    return Words(tuple(context.log.read_text().split("\n")))


def refuse(request: Words, _context: JobContext) -> Words:
    raise TooManyWordsError(f"{len(request.words)} words", "here", "use fewer")


def import_theirs(request: Words, _context: JobContext) -> Words:
    sys.path.append(str(request.folder))
    return Words((importlib.import_module("theirs").VALUE,))


def meet(request: Words, context: JobContext) -> Words:
    """Wait for another job. The words: this job's name, the other's, and what to do then: refuse, die, or answer."""
    own, other, *then = request.words
    assert request.folder is not None
    (request.folder / own).write_text(str(os.getpid()))
    while not (request.folder / other).is_file():
        time.sleep(0.01)
    context.report(Step(own, "met", 0.0))
    if then == ["refuse"]:
        raise TooManyWordsError(f"{own} refuses", "here", "use fewer")
    if then == ["die"]:
        os.abort()
    return Words((own,))


SAY = Job(f"{__name__}:say", Words, Words)
REFUSE = Job(f"{__name__}:refuse", Words, Words)
MEET = Job(f"{__name__}:meet", Words, Words)
IMPORT = Job(f"{__name__}:import_theirs", Words, Words)
