"""Weights that llama.cpp's converter took apart, as Hugging Face stores them.

rows: one part after the other. latent: keys [N, rank, nope] and values [N, value, rank] of latent attention, by head.
delta: rows [q | k | v] of all heads and gates, by key head. Source: llama.cpp's conversion/deepseek.py and qwen.py.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from trtkit.errors import SourceError
from trtkit.sources.checkpoint import StoredArray
from trtkit.sources.joined_array import joined

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trtkit.arrays import Array
    from trtkit.sources.gguf.file import GgufFile
    from trtkit.sources.gguf.layout import Joined
    from trtkit.sources.gguf.metadata import Fields


def join(file: GgufFile, names: Sequence[str], how: Joined, config: Fields, *, keep_quantized: bool) -> StoredArray:
    """Return the weight whose parts have these names. keep_quantized: parts of one type stay as they are."""
    if how.how == "rows":
        keeps = keep_quantized and len({file.tensors[name].type for name in names}) == 1
        return joined([file.stored_matrix(name) if keeps else file.stored(name) for name in names], 0)
    parts = [file.stored(name) for name in names]
    if how.how == "latent" and any(len(part.shape) != 3 for part in parts):
        raise SourceError(f"`{names[0]}` is not stored by head", str(file.path), "convert the model again")
    columns = parts[-1].shape[-1]
    rows = sum(math.prod(part.shape) for part in parts) // columns
    restore = _latent if how.how == "latent" else _delta
    return StoredArray((rows, columns), lambda: restore([part.read() for part in parts], config))


def _latent(parts: Sequence[Array], _: Fields) -> Array:
    """Return `kv_b_proj` [N (nope + value), rank]."""
    keys, values = parts
    by_head = np.concatenate((keys.swapaxes(1, 2), values), axis=1)
    return by_head.reshape(-1, by_head.shape[-1])


def _delta(arrays: Sequence[Array], config: Fields) -> Array:
    """Return `in_proj_qkvz` [K (2 key + 2 R value), D]. R: value heads for each key head."""
    rows, gates = arrays
    heads = int(config["linear_num_key_heads"])
    width = heads * int(config["linear_key_head_dim"])
    parts = (*np.split(rows, [width, 2 * width]), gates)
    by_head = np.concatenate([part.reshape(heads, -1, part.shape[-1]) for part in parts], axis=1)
    return by_head.reshape(-1, by_head.shape[-1])
