"""The verdict of a verification and its reason."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trtkit.quantization_methods import LESS_LOSS

if TYPE_CHECKING:
    from trtkit.verification.report import BundleNetwork, Check, Comparison, Corner, Report


PASS, INCONCLUSIVE = "PASS", "PASS (inconclusive)"
WRONG_ANSWERS, OUT_OF_TOLERANCE = "FAIL (wrong answers)", "FAIL (out of tolerance)"
OTHER_NETWORK = "FAIL (other network)"


def verdict(report: Report) -> str:
    """Return one of the five verdicts; wrong answers only if nothing else is wrong.

    A bundle with a network other than the verified one comes first: what was measured is not what runs.
    """
    if report.passed:
        is_hollow = set(report.hollow) == set(report.outputs) or is_nms_idle(report) or _counts_nothing(report)
        return INCONCLUSIVE if is_hollow else PASS
    if _other_network(report) is not None:
        return OTHER_NETWORK
    optional: list[Check | None] = [
        report.rows,
        report.nms,
        report.engine,
        report.perplexity,
        report.stored,
        report.loss,
    ]
    checks: list[Check] = [*report.outputs.values(), *report.corners, *report.parts]
    checks += [check for check in optional if check is not None]
    is_else_right = all(check.passed for check in checks)
    return WRONG_ANSWERS if is_else_right and not report.task.passed else OUT_OF_TOLERANCE


def reason(report: Report) -> str:
    """Return the tolerance, or the deviation of answers or of a slice."""
    if (other := _other_network(report)) is not None:
        where = f"stage `{other.stage}`, rank {other.rank}, {difference_text(other)}"
        return f"the bundle's network is not the one written from its source: {where}"
    task, text = report.task, f"tolerance {report.tolerance:g}"
    if report.source_precision:
        text += f" since the source itself computes in {report.source_precision}"
    if verdict(report) == WRONG_ANSWERS:
        return f"{task.agreement:.1%} of {task.measure} match the reference; {task.required:.1%} required"
    for name, output in report.outputs.items():
        if not output.passed and output.relative_rms_error <= report.tolerance:
            return f"`{name}` at {slice_text(output)} relative to its own size; limit {report.slice_tolerance:g}"
    if report.loss is not None and not report.loss.passed:
        loss = report.loss
        text += f"; the loss on the calibration data is {loss.measured:.1%}; it was {loss.recorded:.1%} when quantized"
    if report.stored is not None and not report.stored.passed:
        text += f"; also differs from the quantized file itself ({report.stored.reference})"
    if report.passed and is_nms_idle(report):
        text += "; NMS had nothing to select, since no box reached `task.boxes.min_score`: give pictures"
    if report.passed and report.counted is not None and _counts_nothing(report):
        text += f"; no box scored {report.counted.floor:g}, so only the scores were compared: give pictures"
    return f"{text}; {hollow_text(report)}" if report.passed and report.hollow else text


def fix(report: Report) -> str:
    """Return advice for a failed verification; empty if it passed or no general advice applies."""
    if _other_network(report) is not None:
        return "build it again: `trtkit build CONFIG --output BUNDLE`"
    if report.passed or not (report.method or report.precision != "fp32"):
        return ""
    if report.loss is not None and not report.loss.passed:
        return "quantize the float model again: the quantized file or its data changed afterwards"
    accept = "set `verify.max_relative_rms_error` to what the task allows"
    if report.method:
        return f"{LESS_LOSS}; or {accept}"
    return f"`trtkit verify CONFIG --fix FILE` finds the nodes to keep in fp32; or {accept}"


def difference_text(network: BundleNetwork) -> str:
    """Return the first differing layer and its difference."""
    return f"layer `{network.layer}`: {network.difference}"


def _other_network(report: Report) -> BundleNetwork | None:
    """Return the bundle's first network that differs from the verified one."""
    return next((network for network in report.networks if not network.passed), None)


def is_nms_idle(report: Report) -> bool:
    """Whether NMS inside the network selected nothing in any run, so that its pass is inconclusive."""
    return report.nms is not None and report.nms.boxes == 0


def _counts_nothing(report: Report) -> bool:
    """Whether a network that selects boxes itself scored none high enough to be compared in any run."""
    return report.counted is not None and not report.counted.rows


def slice_text(compared: Comparison | Corner) -> str:
    """Return the location and size of a comparison's worst slice.

    `axis 1, index 17: 9.8e-01`. Empty if it has no axes.
    """
    worst = compared.worst_slice
    return "" if worst is None else f"axis {worst.axis}, index {worst.index}: {worst.relative_rms_error:.1e}"


def hollow_text(report: Report) -> str:
    """Return which outputs are inconclusive and why."""
    reasons = []
    for name in report.hollow:
        spread = report.outputs[name].spread
        reasons.append(
            f"`{name}` is all NaN" if spread is None else f"`{name}` changes by only {spread:.1e} between inputs"
        )
    return f"{', '.join(reasons)}, so a network that ignores its inputs would pass too"
