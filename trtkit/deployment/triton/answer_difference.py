"""How a server's answer differs from the one that is known, in words."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from trtkit.verification.compare import compare

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trtkit.arrays import Array


def answer_difference(answer: Array | None, expected: Array, tolerance: float, *, is_stream: bool) -> str:
    """Return how an output differs, nothing where it does not. is_stream: pieces in a row stand for the whole."""
    if answer is None:
        return "was not answered"
    if is_stream:
        answer, expected = answer.reshape(-1), expected.reshape(-1)
    if expected.dtype == object:
        return _text_difference(answer, expected, is_stream=is_stream)
    if not np.issubdtype(expected.dtype, np.floating):
        if answer.shape != expected.shape:
            return f"is {list(answer.shape)}, the known answer {list(expected.shape)}"
        wrong = int((answer != expected).sum())
        return f"differs from the known answer in {wrong} of {expected.size} values" if wrong else ""
    result = compare(answer, expected)
    if result.problem:
        return f"is not the known answer: {result.problem}"
    error = result.relative_rms_error
    return "" if error <= tolerance else f"is off by {error:.2g} relative RMS error; {tolerance:.2g} is allowed"


def _text_difference(answer: Array, expected: Array, *, is_stream: bool) -> str:
    got, wanted = list(answer.reshape(-1)), list(expected.reshape(-1))
    if is_stream:
        got, wanted = [b"".join(got)], [b"".join(wanted)]
    if got == wanted:
        return ""
    return f"is {_shown(got)}, the known answer {_shown(wanted)}"


def _shown(texts: Sequence[bytes]) -> str:
    text = ", ".join(repr(each.decode("utf-8", "replace")) for each in texts)
    return text if len(text) <= 120 else f"{text[:117]}..."
