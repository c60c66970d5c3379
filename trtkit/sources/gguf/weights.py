"""A GGUF file's tensors under Hugging Face's names, with the changes by llama.cpp's converter undone."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from trtkit.errors import Problem, ProblemsError, SourceError
from trtkit.sources.checkpoint import StoredArray
from trtkit.sources.gguf.layout import LATER
from trtkit.sources.joined_array import by_key_head, joined, take_listed, take_rows

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from trtkit.arrays import Array
    from trtkit.sources.gguf.file import GgufFile
    from trtkit.sources.gguf.layout import Change, GgufFamily, JoinedTensors
    from trtkit.sources.gguf.metadata import Fields


_BLOCK = re.compile(r"blk\.(\d+)\.(.+)")
# Tensors that the config already implies.
_NOT_WEIGHTS = ("rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight")
# Gates and ups of all experts, which converters may concatenate: in all families whose experts have both.
_GATE_UP, _PARTS = "ffn_gate_up_exps", ("ffn_gate_exps", "ffn_up_exps")
_Named = tuple[str, StoredArray]


def hf_weights(
    file: GgufFile, family: GgufFamily, config: Fields, *, keep_quantized: bool = False
) -> dict[str, StoredArray]:
    """Return the weights by Hugging Face name. Raises ProblemsError naming tensors unknown to the architecture.

    keep_quantized: whether linear layers of types with an equivalent in TensorRT stay quantized, as `QuantizedMatrix`.
    """
    weights: dict[str, StoredArray] = {}
    unknown = []
    reader, later = _TensorFinder(file, family, config, keep_quantized), _later_blocks(file, family)
    for name in file.tensors:
        if name in _NOT_WEIGHTS or name.endswith(".attn_rot_embd.weight") or name.startswith(later):
            continue
        arrays = dict(reader.named(name))
        weights |= arrays
        if not arrays:
            unknown.append(Problem(f"`{name}` of shape {list(file.tensors[name].shape)}", str(file.path)))
    if unknown:
        raise ProblemsError(f"tensors that `{family.model_type}` does not have", unknown)
    return weights | _stated(file, family, int(config.get("num_hidden_layers", 0)))


def _stated(file: GgufFile, family: GgufFamily, count: int) -> dict[str, StoredArray]:
    """Return the weights stored in metadata, one number for each of `count` layers."""
    weights: dict[str, StoredArray] = {}
    for key, (hf, shape) in family.stated.items():
        numbers = file.metadata.get(key, [])
        for index, number in enumerate(numbers if isinstance(numbers, list) else [numbers] * count):
            array = np.full(shape, number, np.float32)
            weights[family.layers.format(i=index) + hf] = StoredArray(shape, partial(_same, array))
    return weights


def _same(array: Array) -> Array:
    return array


def _later_blocks(file: GgufFile, family: GgufFamily) -> tuple[str, ...]:
    """Return the name prefixes of blocks that predict later tokens, which are not read."""
    architecture = file.metadata["general.architecture"]
    keys = {hf: f"{architecture}.{key}" for key, hf in family.fields.items() if hf in ("num_hidden_layers", LATER)}
    later = int(file.metadata.get(keys.get(LATER, ""), 0))
    count = int(file.metadata[keys["num_hidden_layers"]]) if later else 0
    return tuple(f"blk.{count - 1 - index}." for index in range(later))


@dataclass(frozen=True)
class _TensorFinder:
    """Maps a file's tensors to weights of Hugging Face's model. config: the model's."""

    file: GgufFile
    family: GgufFamily
    config: Fields
    keep_quantized: bool

    def named(self, name: str) -> Iterator[_Named]:
        """Yield a tensor's content: a weight, or one per expert; nothing if the tensor is unknown."""
        block = _BLOCK.fullmatch(name)
        if block is None:
            yield from self._outside(name)
            return
        start, tensor = self.family.layers.format(i=block[1]), block[2]
        module, _, suffix = tensor.rpartition(".")
        whole = next((group for group in self.family.joined if module in group.tensors), None)
        if tensor in self.family.blocks:
            yield f"{start}{self.family.blocks[tensor]}", self._restored(name, tensor)
        elif module in self.family.blocks:
            restore = self._kept if self.keep_quantized else self._restored
            yield f"{start}{self.family.blocks[module]}.{suffix}", restore(name, module)
        elif module in self.family.split:
            for hf, part in self._split(name, module):
                yield f"{start}{hf}.{suffix}", part
        elif whole is not None:
            names = [f"blk.{block[1]}.{tensor}.{suffix}" for tensor in whole.tensors]
            if all(name in self.file.tensors for name in names):
                stored = join(self.file, names, whole, self.config, keep_quantized=self.keep_quantized)
                yield f"{start}{whole.module}.{suffix}", stored
        else:
            for hf, part in self._experts(name, module):
                yield f"{start}{hf}.{suffix}", part

    def _outside(self, name: str) -> Iterator[_Named]:
        module, _, suffix = name.rpartition(".")
        if module not in self.family.names:
            return
        hf = f"{self.family.names[module]}.{suffix}"
        if "{e}" in hf:
            for index in range(self.file.tensors[name].shape[0]):
                yield hf.format(e=index), self.file.stored_row(name, index)
        else:
            yield hf, (self._kept if self.keep_quantized and module == "output" else self._restored)(name, module)

    def _experts(self, name: str, module: str) -> Iterator[_Named]:
        experts = self.family.experts
        parts = _PARTS if module == _GATE_UP and set(_PARTS) <= experts.keys() else (module,)
        for expert in range(self.file.tensors[name].shape[0] if parts[0] in experts else 0):
            stored = (self.file.stored_matrix if self.keep_quantized else self.file.stored_row)(name, expert)
            rows = stored.shape[0] // len(parts) if stored.shape else 1
            for index, part in enumerate(parts):
                array = stored if len(parts) == 1 else take_rows(stored, index * rows, rows)
                yield experts[part].format(e=expert), array

    def _split(self, name: str, module: str) -> Iterator[_Named]:
        """Yield queries, keys and values of a tensor that contains their rows in this order."""
        stored = self._kept(name, module) if self.keep_quantized else self.file.stored(name)
        heads, keys = query_heads(self.config), int(self.config["num_key_value_heads"])
        size = stored.shape[0] // (heads + 2 * keys)
        starts = np.cumsum([0, heads * size, keys * size, keys * size]).tolist()
        for index, hf in enumerate(self.family.split[module]):
            yield hf, take_rows(stored, starts[index], starts[index + 1] - starts[index])

    def _changes(self, name: str, key: str) -> tuple[Change, ...]:
        """Return the changes to undo. key: the family's name of the tensor; for biases only changes of rows apply."""
        changes = self.family.changes.get(key, ())
        is_bias = name.endswith(".bias") and not key.endswith(".bias")
        return tuple(change for change in changes if not (is_bias and change in OF_WEIGHTS))

    def _restored(self, name: str, key: str) -> StoredArray:
        """Return a tensor with the converter's changes undone."""
        stored, changes = self.file.stored(name), self._changes(name, key)
        if not changes:
            return stored
        return StoredArray(shape_after(changes, stored.shape), lambda: undo(changes, stored.read(), self.config))

    def _kept(self, name: str, key: str) -> StoredArray:
        """Return a linear layer's quantized matrix, [out, in] in all families; other tensors as from `_restored`."""
        stored, changes = self.file.stored_matrix(name), self._changes(name, key)
        if not stored.is_quantized or not set(changes) <= {*ROW_ORDERS, "transpose"}:
            return self._restored(name, key)
        orders = [change for change in changes if change in ROW_ORDERS]
        return take_listed(stored, undo(orders, np.arange(stored.shape[0]), self.config)) if orders else stored


ROW_ORDERS = ("permute_q", "permute_k", "ungroup", "ungroup_shared", "untile", "untile_values")
"""Changes that only reorder rows."""
OF_WEIGHTS = ("add_one", "transpose", "squeeze", "expand", "flatten")
"""Changes that the converter makes to weights but not to biases."""


def undo(changes: Sequence[Change], array: Array, config: Fields) -> Array:
    """Return a weight as Hugging Face stores it. config: the model's, whose heads define the grouping of rows."""
    for change in changes:
        array = _UNDO[change](array, config)
    return array


def shape_after(changes: Sequence[Change], shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the shape of the result of `undo`."""
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


def join(
    file: GgufFile, names: Sequence[str], how: JoinedTensors, config: Fields, *, keep_quantized: bool
) -> StoredArray:
    """Return the weight whose parts have these names. keep_quantized: whether parts of one type stay quantized."""
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
    """Return `in_proj_qkvz` [K (2 key + 2 R value), D]. R: value heads per key head."""
    rows, gates = arrays
    heads = int(config["linear_num_key_heads"])
    width = heads * int(config["linear_key_head_dim"])
    parts = (*np.split(rows, [width, 2 * width]), gates)
    by_head = np.concatenate([part.reshape(heads, -1, part.shape[-1]) for part in parts], axis=1)
    return by_head.reshape(-1, by_head.shape[-1])
