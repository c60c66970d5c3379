"""A vision model's accuracy on labelled pictures: measures, classes, and confusions."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from trtkit.report.tables import Facts, Note, Table, named, numbers, percent

if TYPE_CHECKING:
    from collections.abc import Sequence

    from markupsafe import Markup

    from trtkit.report.charts import Row
    from trtkit.report.page import PageOrigin, PagePart
    from trtkit.report.tables import Part, Value
    from trtkit.verification.confusion import Confusion
    from trtkit.verification.vision_evaluation import VisionEvaluation

NO_OBJECT = "(no object)"
_SHOWN, _MOST_CLASSES, _MOST_TEXTS = 5, 40, 16


def accuracy_tables(evaluation: VisionEvaluation) -> list[Part]:
    """Return the measures and the most frequent confusions."""
    parts: list[Part] = [_facts(evaluation)]
    confusion = evaluation.confusion
    if confusion is not None and confusion.errors:
        count, more = len(confusion.errors), len(confusion.errors) - _SHOWN
        title = f"most often taken for another, {_SHOWN} of {count} pairs" if more > 0 else "taken for another"
        parts.append(_errors(confusion, title, _SHOWN))
    return parts


def accuracy_page(evaluation: VisionEvaluation, origin: PageOrigin) -> str:
    """Return an evaluation as a self-contained page, with its confusion matrix."""
    from trtkit.report.page import page, section

    parts: list[PagePart] = [_facts(evaluation)]
    confusion = evaluation.confusion
    if confusion is not None:
        parts += section("Confusion matrix", _matrix(confusion), Note(_caption(confusion)))
        parts += [_classes(confusion), _errors(confusion, "taken for another")]
    return page(f"accuracy of {evaluation.name}", parts, origin)


def _facts(evaluation: VisionEvaluation) -> Facts:
    rows: list[tuple[str, Value]] = [(name, f"{value:.2%}") for name, value in evaluation.measures.items()]
    rows.append(("images", f"{evaluation.images}, {evaluation.images / evaluation.seconds:.1f} per second"))
    rows.append(("runtime", evaluation.runtime))
    if evaluation.note:
        rows.append(("note", evaluation.note))
    return Facts("", rows)


def _errors(confusion: Confusion, title: str, most: int | None = None) -> Table:
    """Return the pairs of different classes, most frequent first, with their share of the class."""
    items = {row.name: row.items for row in confusion.classes()}
    rows: list[Sequence[Value]] = [
        (
            _name(pair.truth),
            _name(pair.predicted),
            pair.count,
            None if pair.truth is None else percent(pair.count / items[pair.truth]),
        )
        for pair in confusion.errors[:most]
    ]
    return Table(title, (*named("is", "taken for"), *numbers("count", "of the class")), rows)


def _classes(confusion: Confusion) -> Table:
    rows: list[Sequence[Value]] = [
        (
            row.name,
            row.items,
            row.predictions,
            None if row.recall is None else percent(row.recall),
            None if row.precision is None else percent(row.precision),
        )
        for row in confusion.classes()
    ]
    columns = (*named("class"), *numbers("items", "predictions", "recall", "precision"))
    return Table("classes", columns, rows)


def _matrix(confusion: Confusion) -> Markup:
    """Return the chart: all classes, or those with the most errors."""
    from trtkit.report.charts import figure, matrix

    order = _charted(confusion)
    rows: list[Row] = []
    totals = Counter[str]()
    for pair in confusion.pairs:
        totals[_name(pair.truth)] += pair.count
    for pair in confusion.pairs:
        truth, predicted = _name(pair.truth), _name(pair.predicted)
        if truth in order and predicted in order:
            share = pair.count / totals[truth]
            texts: Row = {"Truth": truth, "Predicted": predicted, "Count": str(pair.count), "Share": f"{share:.1%}"}
            rows.append({"truth": truth, "predicted": predicted, "count": pair.count, "share": share, **texts})
    drawn = matrix(rows, order, has_texts=len(order) <= _MOST_TEXTS)
    return figure(drawn, "Rows add up to the items of a class; the diagonal is right.", 120 + 24 * len(order))


def _charted(confusion: Confusion) -> list[str]:
    """Return the chart's classes in order, only those with the most errors if there are too many."""
    errors = Counter[str]()
    for pair in confusion.errors:
        errors[_name(pair.truth)] += pair.count
        errors[_name(pair.predicted)] += pair.count
    names = [row.name for row in confusion.classes()]
    names.sort(key=lambda name: -errors[name])  # stable: among equals by name
    has_none = errors[NO_OBJECT] > 0
    return sorted(names[:_MOST_CLASSES]) + [NO_OBJECT] * has_none


def _caption(confusion: Confusion) -> str:
    count = len(confusion.classes())
    which = f"The {_MOST_CLASSES} of {count} classes with the most errors. " if count > _MOST_CLASSES else ""
    if confusion.min_score is None:
        return f"{which}Of each picture, the likeliest class."
    return (
        f"{which}Boxes that score {confusion.min_score:g} or more and overlap an object by half (IoU 0.5). "
        f"{NO_OBJECT} across are objects that no box was drawn around, {NO_OBJECT} down boxes around none."
    )


def _name(name: str | None) -> str:
    return NO_OBJECT if name is None else name
