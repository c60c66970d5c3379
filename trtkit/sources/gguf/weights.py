"""A GGUF file's tensors under Hugging Face's names, as Hugging Face stores them."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import numpy as np

from trtkit.errors import Problem, ProblemsError
from trtkit.sources.checkpoint import StoredArray
from trtkit.sources.gguf.layout import LATER

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trtkit.arrays import Array
    from trtkit.sources.gguf.file import GgufFile
    from trtkit.sources.gguf.layout import Change, GgufFamily

_BLOCK = re.compile(r"blk\.(\d+)\.(.+)")
# Tensors that the config says already.
_NOT_WEIGHTS = ("rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight")
_HEADS = {
    "permute_q": "attention.head_count",
    "permute_k": "attention.head_count_kv",
    "ungroup": "attention.head_count",
}
_Named = tuple[str, StoredArray]


def hf_weights(file: GgufFile, family: GgufFamily, *, keep_quantized: bool = False) -> dict[str, StoredArray]:
    """Return the weights by Hugging Face name. Raises ProblemsError naming tensors that the architecture lacks.

    keep_quantized: linear layers whose type TensorRT has a form for stay in it, as `QuantizedMatrix`.
    """
    weights: dict[str, StoredArray] = {}
    unknown = []
    later = _later_blocks(file, family)
    for name in file.tensors:
        if name in _NOT_WEIGHTS or name.endswith(".attn_rot_embd.weight") or name.startswith(later):
            continue
        arrays = dict(_named(file, family, name, keep_quantized))
        weights |= arrays
        if not arrays:
            unknown.append(Problem(f"`{name}` of shape {list(file.tensors[name].shape)}", str(file.path)))
    if unknown:
        raise ProblemsError(f"tensors that `{family.model_type}` does not have", unknown)
    return weights


def _later_blocks(file: GgufFile, family: GgufFamily) -> tuple[str, ...]:
    """Return how the names of blocks begin that predict later tokens, and are not read."""
    architecture = file.metadata["general.architecture"]
    keys = {hf: f"{architecture}.{key}" for key, hf in family.fields.items() if hf in ("num_hidden_layers", LATER)}
    later = int(file.metadata.get(keys.get(LATER, ""), 0))
    count = int(file.metadata[keys["num_hidden_layers"]]) if later else 0
    return tuple(f"blk.{count - 1 - index}." for index in range(later))


def _named(file: GgufFile, family: GgufFamily, name: str, keep_quantized: bool) -> Iterator[_Named]:
    """Yield what one tensor of the file holds: a weight, or one for each expert; nothing where it is not known."""
    block = _BLOCK.fullmatch(name)
    module, _, suffix = (block[2] if block else name).rpartition(".")
    if block is None:
        if module in family.names:
            restore = _kept if keep_quantized and module == "output" else _restored
            yield f"{family.names[module]}.{suffix}", restore(file, family, name, module)
        return
    start = family.layers.format(i=block[1])
    if block[2] in family.blocks:
        yield f"{start}{family.blocks[block[2]]}", file.stored(name)
    elif module in family.blocks:
        restore = _kept if keep_quantized else _restored
        yield f"{start}{family.blocks[module]}.{suffix}", restore(file, family, name, module)
    elif module in family.experts:
        for expert in range(file.tensors[name].shape[0]):
            yield f"{start}{family.experts[module].format(e=expert)}.{suffix}", file.stored_row(name, expert)


def _restored(file: GgufFile, family: GgufFamily, name: str, module: str) -> StoredArray:
    """Return a tensor with what the converter did to it undone."""
    stored, change = file.stored(name), family.changes.get(module)
    is_bias = name.endswith(".bias") and change in ("add_one", "transpose")
    if change is None or is_bias:
        return stored
    heads = _head_count(file, _HEADS[change]) if change in _HEADS else 0
    shape = stored.shape
    if change == "transpose":
        shape = shape[::-1]
    elif change == "squeeze":
        shape = (1, *shape) if len(shape) == 1 else shape
    return StoredArray(shape, lambda: _undo(change, stored.read(), heads).reshape(shape))


def _kept(file: GgufFile, family: GgufFamily, name: str, module: str) -> StoredArray:
    """Return a linear layer's matrix in few bits, [out, in] in all families; other tensors as `_restored` does."""
    stored, change = file.stored_matrix(name), family.changes.get(module)
    if not stored.is_quantized:
        return _restored(file, family, name, module)
    if change is None or change == "transpose":
        return stored
    heads = _head_count(file, _HEADS[change])
    order = _undo(change, np.arange(stored.shape[0]), heads).reshape(-1)
    read: Any = lambda: stored.read().rows(order)  # type: ignore[attr-defined]  # noqa: E731
    return StoredArray(stored.shape, read, is_quantized=True)


def _undo(change: Change, array: Array, heads: int) -> Array:
    """Undo what llama.cpp's converter did.

    permute_q, permute_k: rotary pairs (i, i + H/2) of each head were made neighbours. add_one: Gemma's norms multiply
    by 1 + weight. transpose: GPT-2 stores [in, out]. ungroup: the rows [q | k | v] of each head became those of all
    heads, q first. squeeze: an axis of size 1 was dropped.
    """
    if change in ("permute_q", "permute_k"):
        return array.reshape(heads, -1, 2, *array.shape[1:]).swapaxes(1, 2)
    if change == "add_one":
        less: Array = array - np.asarray(1, array.dtype)
        return less
    if change == "transpose":
        return array.T
    if change == "ungroup":
        return array.reshape(3, heads, -1, *array.shape[1:]).swapaxes(0, 1)
    return array


def _head_count(file: GgufFile, key: str) -> int:
    """Return a number of heads; key and value heads are as many as query heads where the file does not say."""
    architecture = file.metadata["general.architecture"]
    count = file.metadata.get(f"{architecture}.{key}") or file.metadata[f"{architecture}.attention.head_count"]
    return int(count[0] if isinstance(count, list) else count)
