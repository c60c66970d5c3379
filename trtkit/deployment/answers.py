"""A vision network's outputs as the answers that clients get: classes or text."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from trtkit.runtime.tasks import ctc_scores, ctc_text, softmax, top_classes

if TYPE_CHECKING:
    from collections.abc import Mapping

    from trtkit.arrays import Array


def read_answer(output: Array, settings: Mapping[str, Any]) -> dict[str, Array]:
    """Return what an output [N, ...] says, an entry for each item. settings: as the deployment wrote them."""
    return _text(output, settings) if settings["kind"] == "ctc-text" else _classes(output, settings)


def _classes(logits: Array, settings: Mapping[str, Any]) -> dict[str, Array]:
    """Return class_id [N, k], score [N, k] by the softmax and, where classes have names, label [N, k]."""
    ids = np.array(top_classes(logits, settings["top_k"]), dtype=np.int32)
    answer = {"class_id": ids, "score": np.take_along_axis(softmax(logits), ids, axis=-1).astype(np.float32)}
    if labels := settings["labels"]:
        answer["label"] = np.array([[labels[index].encode() for index in row] for row in ids], dtype=np.object_)
    return answer


def _text(probabilities: Array, settings: Mapping[str, Any]) -> dict[str, Array]:
    """Return text [N, 1] and score [N, 1]: the mean of the probabilities of the steps that are no blank."""
    texts = ctc_text(probabilities, settings["characters"])
    return {
        "text": np.array([[text.encode()] for text in texts], dtype=np.object_),
        "score": np.array(ctc_scores(probabilities), dtype=np.float32)[:, None],
    }
