"""What a verification found, in two words, and why."""

from __future__ import annotations

from typing import Any

Json = dict[str, Any]


def verdict(found: Json) -> str:
    """Return `right`, `proves nothing`, `wrong answers` where nothing else is wrong, or `out of tolerance`."""
    if found["passed"]:
        return "proves nothing" if _hollow(found) == list(found["outputs"]) else "right"
    measured = [*found["corners"], *(found.get("parts") or ())]
    measured += [one for key in ("rows", "engine", "perplexity") if (one := found.get(key))]
    is_close = all(_is_close(output, found["tolerance"]) for output in found["outputs"].values())
    is_answered = found["task"]["agreement"] >= found["task"]["required"]
    is_else_right = is_close and all(one["passed"] for one in measured)
    return "wrong answers" if is_else_right and not is_answered else "out of tolerance"


def reason(found: Json) -> str:
    """Return what was asked for, and what is there of it where answers or a slice are wrong."""
    task, text = found["task"], f"tolerance {found['tolerance']:g}"
    if verdict(found) == "wrong answers":
        equal = f"{task['agreement']:.1%} of {task['measure']} equal the reference's"
        return f"{equal}, {task['required']:.1%} are asked for"
    for name, output in found["outputs"].items():
        if not _is_close(output, found["tolerance"]) and is_near(output["relative_rms_error"], found["tolerance"]):
            return f"`{name}` at {slice_text(output)} of its own size; {found['slice_tolerance']:g} is allowed"
    if found["passed"] and _hollow(found):
        return f"{text}; {hollow_text(found)}"
    return text


def slice_text(compared: Json) -> str:
    """Return where a comparison is worst, and by how much: `axis 1, index 17: 9.8e-01`. Empty where it has no axes."""
    worst = compared.get("worst_slice")
    if worst is None:
        return ""
    error = worst["relative_rms_error"]
    return f"axis {worst['axis']}, index {worst['index']}: {'inf' if error is None else f'{error:.1e}'}"


def hollow_text(found: Json) -> str:
    """Return which outputs prove nothing, and why."""
    said = []
    for name in _hollow(found):
        moved = found["outputs"][name]["spread"]
        said.append(f"`{name}` is NaN throughout" if moved is None else f"`{name}` moves by {moved:.1e} between inputs")
    return f"{', '.join(said)}: a network that ignores its inputs would pass too"


def is_near(error: float | None, tolerance: float) -> bool:
    """Whether an error is within a tolerance; None stands for an infinite one."""
    return error is not None and error <= tolerance


def _is_close(output: Json, tolerance: float) -> bool:
    """Whether an output is right; reports of earlier versions have no `passed` of their own."""
    return bool(output.get("passed", is_near(output["relative_rms_error"], tolerance)))


def _hollow(found: Json) -> list[str]:
    return list(found.get("hollow") or ())
