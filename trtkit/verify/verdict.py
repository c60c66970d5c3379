"""What a verification found, in two words, and why."""

from __future__ import annotations

from typing import Any

Json = dict[str, Any]


def verdict(found: Json) -> str:
    """Return `right`, `wrong answers` where nothing else is wrong, or `out of tolerance`."""
    if found["passed"]:
        return "right"
    measured = [*found["corners"], *(found.get("parts") or ())]
    measured += [one for key in ("rows", "engine", "perplexity") if (one := found.get(key))]
    errors = [output["relative_rms_error"] for output in found["outputs"].values()]
    is_close = all(error is not None and error <= found["tolerance"] for error in errors)
    is_answered = found["task"]["agreement"] >= found["task"]["required"]
    is_else_right = is_close and all(one["passed"] for one in measured)
    return "wrong answers" if is_else_right and not is_answered else "out of tolerance"


def reason(found: Json) -> str:
    """Return what was asked for, and what is there of it where answers are wrong."""
    if verdict(found) != "wrong answers":
        return f"tolerance {found['tolerance']:g}"
    task = found["task"]
    return f"{task['agreement']:.1%} of {task['measure']} equal the reference's, {task['required']:.1%} are asked for"
