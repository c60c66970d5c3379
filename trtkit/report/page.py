"""The frame of every HTML report: one file that needs no other, for screens and phones, light and dark."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

from trtkit.report.cells import cell
from trtkit.report.charts import CHART, library
from trtkit.version import __version__

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from trtkit.report.cells import Value

_FOLDED = 40
"""Tables with more rows than this are folded."""


@dataclass(frozen=True)
class PageOrigin:
    """Where a page's figures come from. bundle: its path and build key, empty if there is none."""

    command: str
    bundle: str = ""
    date: str = field(default_factory=lambda: datetime.now(UTC).isoformat(timespec="seconds"))
    versions: str = f"trtkit {__version__}"

    def rows(self) -> dict[str, str]:
        """Return names and values, without those that are empty."""
        rows = {"command": self.command, "bundle": self.bundle, "date": self.date, "versions": self.versions}
        return {name: value for name, value in rows.items() if value}


def page(title: str, parts: Iterable[str], origin: PageOrigin) -> str:
    """Return a page. title: as text. parts: as HTML."""
    body = "\n".join([*parts, "<h2>Provenance</h2>", facts(origin.rows())])
    style, script = (Path(__file__).with_name(name).read_text(encoding="utf-8") for name in ("page.css", "page.js"))
    scripts = ([library()] if CHART in body else []) + [script]
    code = "".join(f"<script>{text}</script>" for text in scripts)
    metas = "<meta name='viewport' content='width=device-width, initial-scale=1'>"
    metas += "<meta name='color-scheme' content='light dark'>"
    head = f"<meta charset='utf-8'>{metas}<title>{escape(title)}</title><style>{style}</style>"
    return f"<!doctype html><html lang='en'><head>{head}</head><body>{body}{code}</body></html>\n"


def table(headers: Sequence[str], rows: Iterable[Sequence[Value]]) -> str:
    """Return a table that a click on a header sorts; long ones are folded. Empty without rows."""
    cells = [list(map(cell, row)) for row in rows]
    if not cells:
        return ""
    lines = [f"<tr>{''.join(row)}</tr>" for row in cells]
    kinds = (" class='number'" if cell.startswith("<td class='number'") else "" for cell in cells[0])
    head = "".join(f"<th tabindex='0'{kind}>{escape(text)}</th>" for text, kind in zip(headers, kinds, strict=True))
    whole = f"<table class='sortable'><thead><tr>{head}</tr></thead><tbody>{''.join(lines)}</tbody></table>"
    scrolled = f"<div class='scroll'>{whole}</div>"
    return f"<details><summary>{len(lines)} rows</summary>{scrolled}</details>" if len(lines) > _FOLDED else scrolled


def facts(rows: Mapping[str, Value]) -> str:
    """Return a table of names and values."""
    lines = "".join(f"<tr><th>{escape(name)}</th>{cell(value)}</tr>" for name, value in rows.items())
    return f"<div class='scroll'><table class='facts'><tbody>{lines}</tbody></table></div>"


def verdict_title(title: str, verdict: str, *, passed: bool) -> str:
    """Return a heading that ends in a verdict."""
    return f"<h1>{escape(title)}: <span class='{'pass' if passed else 'fail'}'>{escape(verdict)}</span></h1>"


def section(title: str, *parts: str, level: int = 2) -> Iterable[str]:
    """Yield a heading and what is under it; nothing if all of that is empty."""
    if any(parts):
        yield f"<h{level}>{escape(title)}</h{level}>"
        yield from parts
