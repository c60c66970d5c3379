"""Comparison of a model's variants, as a table and as a page."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trtkit.report.tables import Column, Facts, NumberCell, Table, VerdictCell, named, number, numbers

if TYPE_CHECKING:
    from trtkit.benchmarking.variants import Variant, VariantComparison
    from trtkit.report.page import PageOrigin
    from trtkit.report.tables import Part, Value


def variant_tables(compared: VariantComparison) -> list[Part]:
    """Return a row for each variant, and the verdict."""
    is_text = compared.kind == "language model"
    per_second = "characters/s" if compared.characters_per_token else "tokens/s" if is_text else "images/s"
    measure = (compared.measure, "change") if compared.measure else ()
    columns = (
        *named("variant", kind="name"),
        *numbers("engine", "error", "allowed", *measure, f"{compared.gpu} ms", per_second),
        Column(""),
    )
    rows = [_row(compared, variant) for variant in compared.variants]
    facts: list[tuple[str, Value]] = [("verdict", compared.verdict)]
    if compared.characters_per_token is not None:
        facts.append(("characters per token", f"{compared.characters_per_token:.2f}, of the text"))
    facts.append(
        ("times", f"floors of a {'decode step' if is_text else 'call'} by published figures; see `trtkit plan`")
    )
    return [Table(f"variants of {compared.model}", columns, rows), Facts("", facts)]


def _row(compared: VariantComparison, variant: Variant) -> list[Value]:
    size = NumberCell(variant.engine_bytes, f"{variant.engine_bytes / 2**20:.1f} MiB")
    row: list[Value] = [variant.name, size, _error(variant.relative_rms_error), _error(variant.tolerance)]
    if compared.measure:
        value = variant.quality[compared.measure]
        text = f"{value:.3f}" if compared.kind == "language model" else f"{value:.2%}"
        row += [NumberCell(value, text), NumberCell(variant.loss or 0.0, compared.change(variant) or "-")]
    row += [NumberCell(variant.planned_ms, f"{variant.planned_ms:.3f}"), number(round(variant.planned_per_second))]
    return [
        *row,
        VerdictCell(not variant.excluded, variant.excluded or ("best" if variant.name == compared.best else "")),
    ]


def _error(value: float) -> NumberCell:
    return NumberCell(value, f"{value:.2g}")


def variants_page(compared: VariantComparison, origin: PageOrigin) -> str:
    """Return a page with the table and a chart of size against error."""
    from trtkit.report.charts import ChartAxis, colour, figure, points
    from trtkit.report.page import page

    rows: list[dict[str, str | float | None]] = [
        {
            "variant": variant.name,
            "MiB": variant.engine_bytes / 2**20,
            "error": max(variant.relative_rms_error, 1e-8),
        }
        for variant in compared.variants
    ]
    axes = (ChartAxis("MiB", "engine (MiB)"), ChartAxis("error", "relative RMS error", is_log=True))
    chart = figure(points(rows, axes, colour("variant", "variant"), size=160), "Smaller and lower is better.")
    return page(
        f"{compared.model}: variants",
        [*variant_tables(compared), chart],
        origin,
        VerdictCell(bool(compared.best), compared.verdict),
    )
