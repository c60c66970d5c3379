"""Cells of tables: numbers that a person reads, with the value that they are sorted by."""

from __future__ import annotations

import math
from dataclasses import dataclass
from html import escape

_LONG = 40
"""Texts of more characters than this break into lines."""


@dataclass(frozen=True)
class NumberCell:
    """A number as text, and the value to sort by."""

    value: float
    text: str


@dataclass(frozen=True)
class VerdictCell:
    """Whether a check passed, in words."""

    passed: bool
    text: str


@dataclass(frozen=True)
class LinkCell:
    """A link by its host's name."""

    url: str


Value = str | int | float | NumberCell | VerdictCell | LinkCell | None


def cell(value: Value) -> str:
    """Return a cell of a table; None is a dash."""
    if isinstance(value, int | float):
        value = number(value)
    match value:
        case None:
            return "<td class='number'>-</td>"
        case NumberCell(value=amount, text=text):
            sort = f" data-value='{amount!r}'" if math.isfinite(amount) else " data-value='1e999'"
            return f"<td class='number'{sort}>{escape(text)}</td>"
        case VerdictCell(passed=passed, text=text):
            return f"<td class='{'pass' if passed else 'fail'}'>{escape(text)}</td>"
        case LinkCell(url=url):
            return f"<td><a href='{escape(url)}'>{escape(url.split('/')[2])}</a></td>"
        case str():
            return f"<td class='{'text long' if len(value) > _LONG else 'text'}'>{escape(value)}</td>"


def number(value: float) -> NumberCell:
    """Return a number: a count with commas, others with three digits."""
    return NumberCell(value, f"{value:,}" if isinstance(value, int) else _three(value))


def percent(share: float) -> NumberCell:
    """Return a share as a percentage."""
    return NumberCell(share, f"{100 * share:.1f} %")


def milliseconds(ms: float) -> NumberCell:
    """Return a time in s, ms or µs."""
    factor, unit = (1e-3, "s") if ms >= 1000 else (1.0, "ms") if ms >= 0.1 or ms == 0 else (1e3, "µs")
    return NumberCell(ms, f"{_three(factor * ms)} {unit}")


def size(count: float) -> NumberCell:
    """Return bytes with a binary prefix."""
    return NumberCell(count, size_text(count))


def size_text(count: float) -> str:
    """Return bytes with a binary prefix and one decimal, such as `205.4 MiB`."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{count:.0f} B" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} TiB"


def quantity(value: float, unit: str) -> NumberCell:
    """Return a value with an SI prefix before its unit."""
    scaled, prefixes = value, iter("kMGTP")
    prefix = ""
    while abs(scaled) >= 1000 and prefix != "P":
        scaled, prefix = scaled / 1000, next(prefixes)
    return NumberCell(value, f"{_three(scaled)} {prefix}{unit}".strip())


def _three(value: float) -> str:
    """Return three digits, more of thousands."""
    return f"{value:,.0f}" if 100 <= abs(value) < 1e6 else f"{value:.3g}"
