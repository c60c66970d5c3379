"""What HTML pages share; each is one file that needs no other."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

_STYLE = """
body { font: 14px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 1040px; padding: 0 1rem; color: #1b1f24 }
table { border-collapse: collapse; margin: .5rem 0 1.5rem; font-variant-numeric: tabular-nums }
td, th { text-align: left; padding: .15rem .9rem .15rem 0; vertical-align: top }
th { border-bottom: 1px solid #ccc; font-weight: 600 }
svg { background: #fafafa; border: 1px solid #ddd } text { font: 11px system-ui; fill: #555 } polyline { fill: none }
circle:hover { r: 6 }
"""


def page(title: str, parts: Iterable[str], *, style: str = "", script: str = "") -> str:
    """Return a page. title: as text; parts: as HTML; style: what is beyond the style that all pages have."""
    head = f"<meta charset='utf-8'><title>{escape(title)}</title><style>{_STYLE}{style}</style>"
    code = f"<script>{script}</script>" if script else ""
    body = "\n".join(parts)
    return f"<!doctype html><html lang='en'><head>{head}</head><body>{body}{code}</body></html>\n"


def table(headers: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """Return a table of texts and numbers; headers may be empty."""
    head = f"<tr>{''.join(f'<th>{escape(text)}</th>' for text in headers)}</tr>" if any(headers) else ""
    body = "".join(f"<tr>{''.join(f'<td>{escape(str(cell))}</td>' for cell in row)}</tr>" for row in rows)
    return f"<table>{head}{body}</table>"
