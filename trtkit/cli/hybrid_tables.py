"""Tables of hybrids: what the parts are and what goes between them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from trtkit.cli.tables import listing, shape_text

if TYPE_CHECKING:
    from rich.table import Table

Json = dict[str, Any]


def parts_table(hybrid: Json) -> Table:
    """List the parts in order: what each takes, from where, and what it gives."""
    engines = {part: stage["engine"] or stage["name"] for stage in hybrid["stages"] for part in stage["parts"]}
    rows = listing(
        f"parts of {hybrid['model_type']}, {hybrid['compose']}", "part", "takes", "gives", "engine", "layers"
    )
    for part in hybrid["parts"]:
        takes = "\n".join(_port(port, part["feeds"][port["name"]]) for port in part["inputs"])
        gives = "\n".join(_port(port, port["name"]) for port in part["outputs"])
        rows.add_row(f"{part['name']} ({part['kind']})", takes, gives, engines[part["name"]], str(part["layers"]))
    return rows


def _port(port: Json, name: str) -> str:
    return f"{name} {port['dtype']} {shape_text(port['shape'])}"
