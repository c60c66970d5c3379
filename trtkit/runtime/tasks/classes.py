"""Classes from scores, and class names from an ONNX file."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import numpy as np

from trtkit.sources.onnx_file import class_names, metadata_value, read_graph

if TYPE_CHECKING:
    from pathlib import Path

    from trtkit.arrays import Array

# Operators that move or round values without changing their meaning.
_PASSING = {"Cast", "Dropout", "Flatten", "Identity", "Reshape", "Squeeze", "QuantizeLinear", "DequantizeLinear"}


def top_classes(scores: Array, count: int = 5) -> list[list[int]]:
    """Return the indices of the `count` largest scores of each item, largest first.

    scores: [N, classes], optionally followed by axes of size 1.
    """
    order = np.argsort(-scores.reshape(len(scores), -1).astype(np.float64), axis=-1, kind="stable")
    return [[int(index) for index in row[:count]] for row in order]


def softmax(logits: Array) -> Array:
    """Return the softmax over the last axis, in fp64."""
    shifted = np.exp(logits.astype(np.float64) - logits.max(axis=-1, keepdims=True))
    return np.asarray(shifted / shifted.sum(axis=-1, keepdims=True))


def scores_of(path: Path) -> Literal["probabilities", "logits"]:
    """Return the kind of values in the first output of an ONNX file, by the operator that computes it.

    The values alone cannot tell: a batch's logits may look like probabilities.
    """
    graph = read_graph(path).graph
    makers = {name: node for node in graph.node for name in node.output}
    node = makers.get(graph.output[0].name)
    while node is not None and node.op_type in _PASSING:
        node = makers.get(node.input[0])
    is_probability = node is not None and node.op_type in {"Softmax", "Sigmoid"}
    return "probabilities" if is_probability else "logits"


def metadata_labels(path: Path) -> tuple[str, ...]:
    """Return the class names in `names` of an ONNX file's metadata, a Python dict by number; empty if it has none."""
    return class_names(metadata_value(path, "names") or "")
