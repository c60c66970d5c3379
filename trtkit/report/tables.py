"""The content of a report as data: tables, facts and notes, for both the terminal and pages."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class NumberCell:
    """A number as text, and the value to sort by."""

    value: float
    text: str


@dataclass(frozen=True)
class VerdictCell:
    """Whether a check passed, as text."""

    passed: bool
    text: str


@dataclass(frozen=True)
class LinkCell:
    """A link, labelled with its host's name."""

    url: str

    @property
    def text(self) -> str:
        """The host's name."""
        return self.url.split("/")[2]


Cell = str | NumberCell | VerdictCell | LinkCell | None
"""A table cell; None is shown as a dash."""
Value = Cell | int | float


@dataclass(frozen=True)
class Column:
    """A column: text wraps, names and numbers do not, and numbers are right-aligned.

    title: line breaks are kept in a terminal. is_wide: shown on pages only, as a terminal has 80 columns.
    """

    title: str
    kind: Literal["text", "name", "number"] = "text"
    is_wide: bool = False


@dataclass(frozen=True)
class Table:
    """Rows of cells. A single-cell row in a table of several columns is a remark on the previous row."""

    title: str
    columns: tuple[Column, ...]
    rows: Sequence[Sequence[Value]]
    caption: str = ""


@dataclass(frozen=True)
class Facts:
    """Names and values."""

    title: str
    rows: Sequence[tuple[str, Value]]


Style = Literal["", "warning", "good", "bad"]


@dataclass(frozen=True)
class Note:
    """A paragraph. lead: its first words; if there are any, only these are styled."""

    text: str
    style: Style = ""
    lead: str = ""


@dataclass(frozen=True)
class Lines:
    """A list of lines."""

    title: str
    lines: Sequence[str]


Part = Table | Facts | Note | Lines


def named(*titles: str, kind: Literal["text", "name", "number"] = "text") -> tuple[Column, ...]:
    """Return columns of one kind."""
    return tuple(Column(title, kind) for title in titles)


def numbers(*titles: str) -> tuple[Column, ...]:
    """Return columns of numbers."""
    return named(*titles, kind="number")


def as_cell(value: Value) -> Cell:
    """Return a value as shown: counts with thousands separators, other numbers with three digits."""
    return number(value) if isinstance(value, int | float) else value


def number(value: float) -> NumberCell:
    """Return a number: counts with thousands separators, others with three digits."""
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


def counted(count: float) -> NumberCell:
    """Return a count with a decimal prefix."""
    return NumberCell(count, count_text(count))


def count_text(count: float) -> str:
    """Return a count with a decimal prefix, such as `8.2 G`."""
    for prefix in ("", "K", "M", "G", "T"):
        if count < 1000 or prefix == "T":
            return f"{count:.0f} " if prefix == "" else f"{count:.1f} {prefix}"
        count /= 1000
    raise AssertionError


def plural(count: int, noun: str) -> str:
    """Return `1 token`, `2 tokens`."""
    return f"{count} {noun}{'s' * (count != 1)}"


def shape_text(shape: Sequence[int | str]) -> str:
    """Return `[1, 3, ?, ?]`."""
    return f"[{', '.join('?' if dim == -1 else str(dim) for dim in shape)}]"


def quantity(value: float, unit: str) -> NumberCell:
    """Return a value with an SI prefix before its unit."""
    scaled, prefixes = value, iter("kMGTP")
    prefix = ""
    while abs(scaled) >= 1000 and prefix != "P":
        scaled, prefix = scaled / 1000, next(prefixes)
    return NumberCell(value, f"{_three(scaled)} {prefix}{unit}".strip())


def _three(value: float) -> str:
    """Return three digits, or more for thousands."""
    return f"{value:,.0f}" if 100 <= abs(value) < 1e6 else f"{value:.3g}"
