"""The frame of all HTML reports: one self-contained file for screens and phones, light and dark."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from markupsafe import Markup

from trtkit.report.charts import CHART, library
from trtkit.report.tables import Facts, Lines, Part, Table, as_cell
from trtkit.version import __version__

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from jinja2 import Environment

    from trtkit.report.tables import VerdictCell

_FOLDED = 40
"""Tables with more rows than this are folded."""
_FOLDER = Path(__file__).parent


@dataclass(frozen=True)
class PageOrigin:
    """The origin of a page's figures. bundle: its path and build key, empty if there is none."""

    command: str
    bundle: str = ""
    date: str = field(default_factory=lambda: datetime.now(UTC).isoformat(timespec="seconds"))
    versions: str = f"trtkit {__version__}"

    def facts(self) -> Facts:
        rows = {"command": self.command, "bundle": self.bundle, "date": self.date, "versions": self.versions}
        return Facts("provenance", [(name, value) for name, value in rows.items() if value])


@dataclass(frozen=True)
class Section:
    """A heading and its content, whose own headings are one level lower."""

    title: str
    parts: Sequence[PagePart]


PagePart = Part | Markup | Section
"""Figures are markup already."""


def page(title: str, parts: Iterable[PagePart], origin: PageOrigin, verdict: VerdictCell | None = None) -> str:
    """Return a page. Its template escapes all text."""
    body = _environment().get_template("page.html")
    style, script = ((_FOLDER / name).read_text(encoding="utf-8") for name in ("page.css", "page.js"))
    shown = [part for part in (*parts, origin.facts()) if not _is_empty(part)]
    has_charts = any(CHART in markup for markup in _figures(shown))
    scripts = [Markup(text) for text in ([library()] if has_charts else []) + [script]]
    return body.render(title=title, verdict=verdict, parts=shown, style=Markup(style), scripts=scripts).lstrip()


def section(title: str, *parts: PagePart) -> Iterable[Section]:
    """Yield a heading with its parts; nothing if all of them are empty."""
    if shown := [part for part in parts if not _is_empty(part)]:
        yield Section(title, shown)


def _is_empty(part: PagePart) -> bool:
    match part:
        case Table(rows=items) | Facts(rows=items) | Lines(lines=items) | Section(parts=items):
            return not items
        case _:
            return isinstance(part, Markup) and not part


def _figures(parts: Iterable[PagePart]) -> Iterator[Markup]:
    for part in parts:
        if isinstance(part, Section):
            yield from _figures(part.parts)
        elif isinstance(part, Markup):
            yield part


@cache
def _environment() -> Environment:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    loader = FileSystemLoader(_FOLDER)
    environment = Environment(
        loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.globals["folded"] = _FOLDED
    environment.filters |= {"kind": lambda part: type(part).__name__, "cell": as_cell}
    environment.filters |= {"heading": _heading, "sortable": _sortable}
    return environment


def _heading(title: str) -> str:
    """Return a table's title as a heading on a page: names such as `h200` are unchanged."""
    is_name = any(letter.isdigit() for letter in title.partition(" ")[0])
    return title if is_name else title[:1].upper() + title[1:]


def _sortable(value: float) -> str:
    """Return a number in the form that the page's script reads, which has no infinity."""
    return repr(value) if math.isfinite(value) else "1e999"
