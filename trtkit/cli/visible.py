"""Text from models, files and servers made safe for a terminal, without control characters.

Names in a model are untrusted: an escape sequence in them could clear the screen, set the title or fake a result. JSON
escapes such characters anyway.
"""

from __future__ import annotations

import re
from typing import IO, TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from collections.abc import Iterable

    from rich.console import Console, ConsoleOptions, RenderableType
    from rich.segment import Segment

# C0 except tab and newline, DEL, C1; characters that change the direction of text; unpaired surrogates.
_STEERING = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


def visible(text: str) -> str:
    """Return the text with every terminal control character replaced."""
    return _STEERING.sub("\ufffd", text)


def echo(text: object = "", *, nl: bool = True, err: bool = False) -> None:
    """Print a line that may contain names from elsewhere."""
    click.echo(visible(str(text)), nl=nl, err=err)


def answer(text: str, stream: IO[str]) -> None:
    """Print a model's text unchanged; on a terminal, without control characters."""
    click.echo(visible(text) if stream.isatty() else text, nl=False, color=True)


def console(**options: Any) -> Console:
    """Return a console that filters texts with `visible` but keeps its own codes.

    No markup: names may have brackets.
    """
    from rich.console import Console

    class VisibleConsole(Console):
        """A console whose contents cannot control the terminal."""

        def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
            """Return the segments of a renderable with safe texts."""
            for segment in super().render(renderable, options):
                yield segment if segment.control else segment._replace(text=visible(segment.text))

    return VisibleConsole(markup=False, **options)
