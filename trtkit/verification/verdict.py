"""What a verification found, in two words, and why."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from trtkit.verification.report import Check, Comparison, Corner, Report


def verdict(report: Report) -> str:
    """Return `right`, `proves nothing`, `wrong answers` where nothing else is wrong, or `out of tolerance`."""
    if report.passed:
        return "proves nothing" if set(report.hollow) == set(report.outputs) else "right"
    optional: list[Check | None] = [report.rows, report.engine, report.perplexity]
    checks: list[Check] = [*report.outputs.values(), *report.corners, *report.parts]
    checks += [check for check in optional if check is not None]
    is_else_right = all(check.passed for check in checks)
    return "wrong answers" if is_else_right and not report.task.passed else "out of tolerance"


def reason(report: Report) -> str:
    """Return what was asked for, and what is there of it where answers or a slice are wrong."""
    task, text = report.task, f"tolerance {report.tolerance:g}"
    if verdict(report) == "wrong answers":
        return f"{task.agreement:.1%} of {task.measure} equal the reference's, {task.required:.1%} are asked for"
    for name, output in report.outputs.items():
        if not output.passed and output.relative_rms_error <= report.tolerance:
            return f"`{name}` at {slice_text(output)} of its own size; {report.slice_tolerance:g} is allowed"
    return f"{text}; {hollow_text(report)}" if report.passed and report.hollow else text


def slice_text(compared: Comparison | Corner) -> str:
    """Return where a comparison is worst, and by how much: `axis 1, index 17: 9.8e-01`. Empty where it has no axes."""
    worst = compared.worst_slice
    return "" if worst is None else f"axis {worst.axis}, index {worst.index}: {worst.relative_rms_error:.1e}"


def hollow_text(report: Report) -> str:
    """Return which outputs prove nothing, and why."""
    reasons = []
    for name in report.hollow:
        spread = report.outputs[name].spread
        reasons.append(
            f"`{name}` is NaN throughout" if spread is None else f"`{name}` moves by {spread:.1e} between inputs"
        )
    return f"{', '.join(reasons)}: a network that ignores its inputs would pass too"
