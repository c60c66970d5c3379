"""Undo what llama.cpp's converter did to a weight.

permute_q, permute_k: rotary pairs (i, i + H/2) of each head were made neighbours. add_one: norms that multiply by
1 + weight. transpose: GPT-2 stores [in, out]. ungroup: the rows [q | k | v] of each head became those of all heads, q
first; ungroup_shared: those of each key head. squeeze, expand: an axis of size 1 was dropped. flatten, as_row: axes
were added. log_negate: -exp was taken. untile: value heads, grouped by their key head, were dealt out in turn;
untile_values: those after queries and keys; untile_columns: those of inputs.
Source: llama.cpp's conversion/*.py.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from trtkit.sources.joined_array import by_key_head

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from trtkit.arrays import Array
    from trtkit.sources.gguf.layout import Change
    from trtkit.sources.gguf.metadata import Fields

ROW_ORDERS = ("permute_q", "permute_k", "ungroup", "ungroup_shared", "untile", "untile_values")
"""Changes that put rows into another order, and nothing else."""
OF_WEIGHTS = ("add_one", "transpose", "squeeze", "expand", "flatten")
"""Changes that the converter makes to weights, and not to biases."""


def undo(changes: Sequence[Change], array: Array, config: Fields) -> Array:
    """Return a weight as Hugging Face stores it. config: the model's, whose heads say how rows are grouped."""
    for change in changes:
        array = _UNDO[change](array, config)
    return array


def shape_after(changes: Sequence[Change], shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the shape that `undo` gives."""
    for change in changes:
        if change == "transpose":
            shape = shape[::-1]
        elif change == "squeeze" and len(shape) == 1:
            shape = (1, *shape)
        elif change == "expand" and len(shape) == 2:
            shape = (shape[0], 1, shape[1])
        elif change in ("flatten", "log_negate"):
            shape = (math.prod(shape),)
        elif change == "as_row":
            shape = (1, math.prod(shape))
    return shape


def query_heads(config: Fields) -> int:
    """Return the number of query heads."""
    return int(config.get("num_attention_heads") or config["n_head"])


def _unpermuted(array: Array, heads: int) -> Array:
    return array.reshape(heads, -1, 2, *array.shape[1:]).swapaxes(1, 2).reshape(array.shape)


def _ungrouped_shared(array: Array, config: Fields) -> Array:
    keys = int(config["num_kv_heads"])
    return by_key_head(array, keys, query_heads(config) // keys)


def _untiled(array: Array, config: Fields) -> Array:
    keys, values = int(config["linear_num_key_heads"]), int(config["linear_num_value_heads"])
    return array.reshape(values // keys, keys, -1, *array.shape[1:]).swapaxes(0, 1).reshape(array.shape)


def _untiled_values(array: Array, config: Fields) -> Array:
    first = 2 * int(config["linear_num_key_heads"]) * int(config["linear_key_head_dim"])
    return np.concatenate([array[:first], _untiled(array[first:], config)])


_UNDO: dict[Change, Callable[[Array, Fields], Array]] = {
    "permute_q": lambda array, config: _unpermuted(array, query_heads(config)),
    "permute_k": lambda array, config: _unpermuted(
        array, int(config.get("num_key_value_heads") or query_heads(config))
    ),
    "add_one": lambda array, _: array - np.asarray(1, array.dtype),
    "transpose": lambda array, _: array.T,
    "ungroup": lambda array, config: by_key_head(array, query_heads(config), 1),
    "ungroup_shared": _ungrouped_shared,
    "squeeze": lambda array, _: array.reshape(shape_after(("squeeze",), array.shape)),
    "log_negate": lambda array, _: np.log(-array.reshape(-1)),
    "flatten": lambda array, _: array.reshape(-1),
    "expand": lambda array, _: array.reshape(shape_after(("expand",), array.shape)),
    "as_row": lambda array, _: array.reshape(1, -1),
    "untile": _untiled,
    "untile_values": _untiled_values,
    "untile_columns": lambda array, config: _untiled(array.T, config).T,
}
