"""Checks of every HTML report: well formed, complete without JavaScript, no network access, valid charts."""

from __future__ import annotations

import json
from html.parser import HTMLParser
from typing import Any

import vl_convert

VOID = {"meta", "img"}


class Page(HTMLParser):
    """A page's tags, text (without scripts and styles), table cells and charts."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self.cells: list[str] = []
        self.specs: list[dict[str, Any]] = []
        self.feed(html)
        assert self.open == []
        assert {"viewport", "color-scheme"} <= {attributes.get("name") for _, attributes in self.tags}
        addresses = [value for _, attributes in self.tags for key, value in attributes.items() if key == "src"]
        assert all(str(address).startswith("data:image/") for address in addresses)
        assert "link" not in {tag for tag, _ in self.tags}

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).split())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)
        if tag == "td":
            self.cells.append("")

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        inside = self.open[-1] if self.open else ""
        if inside == "script" and self.tags[-1][1].get("type") == "application/json":
            self.specs.append(json.loads(data))
        elif inside not in {"script", "style"}:
            self.words.append(data)
            if "td" in self.open:
                self.cells[-1] += data


def svg(spec: dict[str, Any]) -> str:
    """Render a chart with the page's library; fails if it is not valid Vega-Lite."""
    drawn: str = vl_convert.vegalite_to_svg(spec)
    return drawn


def rows(spec: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the data of all layers of a chart."""
    return [row for values in spec["datasets"].values() for row in values]


def rows_with(spec: dict[str, Any], field: str) -> list[dict[str, Any]]:
    """Return the data rows that have a field."""
    return [row for row in rows(spec) if field in row]
