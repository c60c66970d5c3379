"""Text from models, files and servers as it may reach a terminal: without what would steer it.

Names in a model are anybody's: an escape sequence among them could clear the screen, set the title or fake a result.
JSON escapes such characters itself.
"""

from __future__ import annotations

import re
from typing import IO, TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from collections.abc import Iterable

    from rich.console import Console, ConsoleOptions, RenderableType
    from rich.segment import Segment

# C0 without tab and newline, DEL, C1; what turns the direction of text; halves of surrogate pairs.
_STEERING = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


def visible(text: str) -> str:
    """Return the text with every character that controls a terminal replaced."""
    return _STEERING.sub("\ufffd", text)


def echo(text: object = "", *, nl: bool = True, err: bool = False) -> None:
    """Print a line that may hold names from elsewhere."""
    click.echo(visible(str(text)), nl=nl, err=err)


def answer(text: str, stream: IO[str]) -> None:
    """Print a model's text as it is; on a terminal without what would steer it."""
    click.echo(visible(text) if stream.isatty() else text, nl=False, color=True)


def console(**options: Any) -> Console:
    """Return a console that shows texts by `visible`; its own codes stay. No markup: names may hold brackets."""
    from rich.console import Console

    class VisibleConsole(Console):
        """A console whose contents cannot steer the terminal."""

        def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
            """Return the segments of a renderable, their texts visible."""
            for segment in super().render(renderable, options):
                yield segment if segment.control else segment._replace(text=visible(segment.text))

    return VisibleConsole(markup=False, **options)
