"""Tables for people: 80 columns, no color except on a terminal."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from rich.table import Table
from rich.text import Text

from trtkit.cli import visible
from trtkit.report import tables

if TYPE_CHECKING:
    from collections.abc import Iterable

    from rich.console import Console, RenderableType

    from trtkit.report.tables import Part

# Right-aligned columns.
_NUMBERS = {
    "layers", "FLOP", "bytes moved", "moved", "size", "relative RMS error", "error", "max abs error", "cosine",
    "largest", "fp16", "bf16", "fp8", "flushed to 0 in fp16",
}  # fmt: skip
# With this many columns, they are one space apart: two would break names in 80 columns.
_MANY_COLUMNS = 10
# Width of a console that holds everything.
_WIDEST = 10_000


def console() -> Console:
    """Return a console on stdout; in a pipe COLUMNS wide, or 80."""
    return visible.console(width=None if sys.stdout.isatty() else int(os.environ.get("COLUMNS") or 80))


def as_text(parts: Iterable[Part]) -> str:
    """Return tables and texts as printed in 80 columns, without color."""
    from rich.console import Console

    out = Console(width=80, color_system=None, force_terminal=False)
    with out.capture() as drawn:
        for index, part in enumerate(map(rendered, parts)):
            out.print(*([""] if index else []), part, sep="\n")
    return "\n".join(line.rstrip() for line in drawn.get().splitlines())


def show(parts: Iterable[Part | RenderableType]) -> None:
    """Print tables and texts separated by empty lines; in a pipe of unknown width, paths are not broken."""
    out, is_fixed = console(), sys.stdout.isatty() or bool(os.environ.get("COLUMNS"))
    for index, part in enumerate(map(rendered, parts)):
        if index:
            out.print()
        if isinstance(part, Table) and part.title:  # rich would wrap it to the width of a narrow table
            out.print(Text(str(part.title), part.title_style or ""))
            part.title = None
        width = _width_for_paths(part, out) if isinstance(part, Table) and not is_fixed else None
        if width is None:
            is_whole = isinstance(part, Text) and max(map(len, part.plain.split()), default=0) > out.width
            out.print(part, soft_wrap=is_whole and not is_fixed)
            continue
        with out.capture() as lines:
            out.print(part, width=width, crop=False)
        for line in lines.get().splitlines():
            out.print(Text.from_ansi(line.rstrip()), soft_wrap=True)


_STYLES = {"": "", "warning": "yellow", "good": "green", "bad": "red"}


def rendered(part: Part | RenderableType) -> RenderableType:
    """Return a part of a report as a rich renderable; renderables are unchanged."""
    match part:
        case tables.Note():
            style = _STYLES[part.style]
            return Text.assemble((part.lead, style), part.text) if part.lead else Text(part.text, style)
        case tables.Facts():
            drawn = pairs(part.title or None)
            for name, value in part.rows:
                drawn.add_row(name, _cell(value))
            return drawn
        case tables.Lines():
            drawn = Table(
                "", "", title=part.title, title_justify="left", title_style="", show_header=False, box=None, padding=0
            )
            for line in part.lines:
                drawn.add_row("- ", line)
            return drawn
        case tables.Table():
            return _drawn(part)
        case _:
            return part


def _drawn(table: tables.Table) -> Table:
    drawn = listing(table.title)
    shown = [index for index, column in enumerate(table.columns) if not column.is_wide]
    drawn.collapse_padding = len(shown) >= _MANY_COLUMNS
    for column in (table.columns[index] for index in shown):
        justify: Literal["left", "right"] = "right" if column.kind == "number" else "left"
        drawn.add_column(column.title, justify=justify, no_wrap=column.kind != "text", overflow="fold")
    for row in table.rows:
        drawn.add_row(*(_cell(row[index]) for index in shown if index < len(row)))
    drawn.caption = table.caption or None
    return drawn


def _cell(value: tables.Value) -> str | Text:
    match tables.as_cell(value):
        case None:
            return "-"
        case str() as text:
            return text
        case tables.VerdictCell(passed=False, text=text):
            return Text(text, "red")
        case cell:
            return cell.text


def _width_for_paths(table: Table, out: Console) -> int | None:
    """Return the width at which no path in a table is broken; None if the console's is enough."""
    for column in table.columns:
        words = (word for cell in column.cells if isinstance(cell, str) for word in cell.split())
        paths = [len(word) for word in words if "/" in word and Path(word.strip(",;:()")).exists()]
        column.min_width = max([column.min_width or 0, *paths]) or None
    needed = table.__rich_measure__(out, out.options.update(width=_WIDEST)).minimum
    return needed if needed > out.width else None


def pairs(title: str | None = None) -> Table:
    """Return a table of names and values."""
    table = Table(title=title, title_justify="left", title_style="bold", show_header=False, box=None, pad_edge=False)
    table.add_column(style="cyan", no_wrap=True)
    table.add_column(overflow="fold")
    return table


def listing(title: str, *columns: str) -> Table:
    """Return a table whose first column is text and whose last columns are numbers."""
    table = Table(title=title, title_justify="left", title_style="bold", box=None, pad_edge=False, header_style="cyan")
    for column in columns:
        is_number = column in _NUMBERS
        table.add_column(column, justify="right" if is_number else "left", no_wrap=is_number, overflow="fold")
    return table
