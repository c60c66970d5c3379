"""Merges the ranks of a TensorRT-LLM checkpoint, including experts, into Hugging Face weights."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import numpy as np

from trtkit.errors import Problem, ProblemsError, SourceError
from trtkit.sources.checkpoint import StoredArray
from trtkit.sources.joined_array import by_key_head, joined, take_listed, take_rows, zero_rows
from trtkit.sources.trtllm.families import family_of
from trtkit.sources.trtllm.fields import head_size, key_value_heads

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from trtkit.sources.trtllm.fields import Experts, Family, Fields

    Arrays = dict[str, StoredArray]
    Ranks = Sequence[Mapping[str, StoredArray]]


_LAYER = re.compile(r"transformer\.layers\.(\d+)\.(.+)\.(weight|bias)")
_IN_LAYER = re.compile(r"transformer\.layers\.(\d+)\.")
SPLIT_AXIS = {
    "lm_head.weight": 0,
    "lm_head.bias": 0,
    "mlp.fc.weight": 0,
    "mlp.fc.bias": 0,
    "mlp.gate.weight": 0,
    "mlp.gate.bias": 0,
    "attention.dense.weight": 1,
    "mlp.proj.weight": 1,
}
"""The axis along which ranks split tensors; norms, and biases of dense and proj, are replicated."""
_POSITIONS = "transformer.position_embedding.weight"


def joined_stages(stages: Ranks, config: Fields, where: str) -> Arrays:
    """Return the tensors of all pipeline stages, each of which numbers its layers from 0. Raises SourceError."""
    arrays: Arrays = {}
    first = 0
    for stage in stages:
        numbers = {name: int(match[1]) for name in stage if (match := _IN_LAYER.match(name))}
        for name, stored in stage.items():
            number = numbers.get(name)
            renamed = name if number is None else _IN_LAYER.sub(f"transformer.layers.{first + number}.", name)
            arrays[renamed] = stored
        first += max(numbers.values(), default=-1) + 1
    if len(stages) > 1 and first != config["num_hidden_layers"]:
        what = f"{len(stages)} stages hold {first} layers, `num_hidden_layers` is {config['num_hidden_layers']}"
        raise SourceError(what, where, "copy config.json and all ranks again")
    return arrays


def hf_weights(ranks: Ranks, config: Fields, where: str) -> Arrays:
    """Return the weights by Hugging Face name, merged on reading.

    Raises ProblemsError naming tensors unknown to the architecture.
    """
    family = family_of(config)
    weights: Arrays = {}
    unknown = []
    for name in ranks[0]:
        arrays = _named(ranks, config, family, name)
        weights |= arrays
        if not arrays:
            unknown.append(Problem(f"`{name}` of shape {list(ranks[0][name].shape)}", where))
    if unknown:
        raise ProblemsError(f"tensors that `{config['architecture']}` does not have", unknown)
    return weights


def _named(ranks: Ranks, config: Fields, family: Family, name: str) -> Arrays:
    """Return a tensor's content: one weight, or several that it joins; nothing if the tensor is unknown."""
    layer = _LAYER.fullmatch(name)
    if layer is None:
        module, _, suffix = name.rpartition(".")
        if module not in family.outside:
            return {}
        stored = _outside(ranks, config, family, name)
        if suffix == "weight":
            stored = _without_one(stored, family, module)
        return {f"{family.outside[module]}.{suffix}": stored}
    number, module, suffix = layer.groups()
    start = f"{family.layers}.{number}."
    if module == "attention.qkv":
        return {f"{start}{hf}.{suffix}": stored for hf, stored in _qkv(ranks, config, family, name).items()}
    if family.experts is not None and module in EXPERT_MODULES:
        return {f"{start}{hf}.{suffix}": stored for hf, stored in expert_weights(ranks, name, family.experts).items()}
    if module not in family.inside:
        return {}
    stored = _merged(ranks, config, name, f"{module}.{suffix}")
    whole = _without_one(stored, family, module) if suffix == "weight" else stored
    return {f"{start}{family.inside[module]}.{suffix}": _restored(whole, family, module)}


def _merged(ranks: Ranks, config: Fields, name: str, local: str) -> StoredArray:
    """Return a layer's tensor of all ranks. Per-head norms are split like the heads."""
    axis = SPLIT_AXIS.get(local)
    parts = [rank[name] for rank in ranks]
    if local.endswith("_layernorm.weight") and len(parts[0].shape) == 2:
        return joined(parts if "q_" in local else _distinct(parts, config), 0)
    return parts[0] if axis is None else joined(parts, axis)


def _distinct(parts: Sequence[StoredArray], config: Fields) -> Sequence[StoredArray]:
    """Return parts with each key head once: with fewer key heads than ranks, adjacent ranks hold the same one."""
    return parts[:: max(1, len(parts) // key_value_heads(config))]


def _outside(ranks: Ranks, config: Fields, family: Family, name: str) -> StoredArray:
    """Return a tensor outside of layers. Embeddings may be split along either axis, or replicated."""
    parts = [rank[name] for rank in ranks]
    axis = SPLIT_AXIS.get(name)
    if name.endswith("_embedding.weight"):
        axis = _embedding_axis(parts[0].shape, config, is_position="position" in name)
    stored = parts[0] if axis is None else joined(parts, axis)
    if name == _POSITIONS:
        return _after_zeros(stored) if family.model_type == "opt" else stored
    rows = config["vocab_size"]
    if not (name.startswith("lm_head") or len(stored.shape) == 2) or stored.shape[0] <= rows:
        return stored
    return take_rows(stored, 0, rows)  # vocabularies are padded to a multiple of the ranks


def _after_zeros(stored: StoredArray) -> StoredArray:
    """Return OPT's positions as in transformers: with the two unused rows in front, which were dropped."""
    return joined([zero_rows(stored, 2), stored], 0)


def _embedding_axis(shape: tuple[int, ...], config: Fields, is_position: bool) -> int | None:
    """Return the axis along which an embedding table is split, None if it is replicated."""
    if shape[1] != config["hidden_size"]:
        return 1
    rows = config["max_position_embeddings"] if is_position else config["vocab_size"]
    return 0 if shape[0] < rows else None


def _qkv(ranks: Ranks, config: Fields, family: Family, name: str) -> Arrays:
    """Return the projections of queries, keys and values by HF module; joined if HF joins them."""
    H, tp = head_size(config), len(ranks)
    queries, keys = config["num_attention_heads"] // tp * H, max(1, key_value_heads(config) // tp) * H
    held = [rank[name] for rank in ranks]
    distinct = _distinct(held, config)
    parts = [
        joined([take_rows(rank, start, count) for rank in holders], 0)
        for holders, start, count in ((held, 0, queries), (distinct, queries, keys), (distinct, queries + keys, keys))
    ]
    if family.rows == "apart":
        return dict(zip(family.qkv, parts, strict=True))
    stored = joined(parts, 0)
    if family.rows == "by key head":
        stored = take_listed(stored, key_head_order(stored.shape[0], config, name))
    return {family.qkv[0]: _restored(stored, family, "attention.qkv")}


def key_head_order(rows: int, config: Fields, name: str) -> np.ndarray:
    """Return the rows [q | k | v] in the order of key heads."""
    heads, keys = config["num_attention_heads"], key_value_heads(config)
    if heads % keys or rows % (heads + 2 * keys):
        raise SourceError(f"`{name}` has {rows} rows for {heads} heads and {keys} key heads")
    return by_key_head(np.arange(rows), keys, heads // keys)


def _restored(stored: StoredArray, family: Family, module: str) -> StoredArray:
    """Return a tensor as in HF's module; a quantized matrix keeps its codes, with rows reordered."""
    if module == family.swapped:
        half = stored.shape[0] // 2
        return joined([take_rows(stored, half, half), take_rows(stored, 0, half)], 0)
    if stored.is_quantized or not family.is_in_out or len(stored.shape) != 2:
        return stored
    return StoredArray(stored.shape[::-1], lambda: stored.read().T)


def _without_one(stored: StoredArray, family: Family, module: str) -> StoredArray:
    """Return a norm's weight as HF stores it if the network adds 1; other tensors unchanged."""
    if module not in family.plus_one:
        return stored
    return StoredArray(stored.shape, lambda: stored.read().astype(np.float32) - np.float32(1))


EXPERT_MODULES = ("mlp.fc", "mlp.proj", "mlp.shared_expert.fc", "mlp.shared_expert.proj")
"""TensorRT-LLM's modules that hold experts."""


def expert_weights(ranks: Sequence[Mapping[str, StoredArray]], name: str, experts: Experts) -> Arrays:
    """Return experts' matrices by HF module: from [E, up then gate, H] and [E, H, down], or from the shared one.

    Empty if the tensor has no experts.
    """
    parts = [rank[name] for rank in ranks]
    is_down = name.endswith("proj.weight")
    if "shared_expert" in name:
        if experts.shared is None or any(len(part.shape) != 2 for part in parts):
            return {}
        return _apart(parts, experts.shared, experts, is_down=is_down)
    if any(part.is_quantized or len(part.shape) != 3 for part in parts):
        return {}
    weights: Arrays = {}
    for expert in range(parts[0].shape[0]):
        matrices = [_expert(part, expert) for part in parts]
        weights |= _apart(matrices, f"{experts.module}.{expert}", experts, is_down=is_down)
    return weights


def _apart(parts: Sequence[StoredArray], module: str, experts: Experts, *, is_down: bool) -> Arrays:
    """Return one expert's matrices from the ranks' parts."""
    if is_down:
        return {f"{module}.{experts.down}": joined(parts, 1)}
    half = parts[0].shape[0] // 2
    return {
        f"{module}.{experts.up}": joined([take_rows(part, 0, half) for part in parts], 0),
        f"{module}.{experts.gate}": joined([take_rows(part, half, half) for part in parts], 0),
    }


def _expert(stored: StoredArray, expert: int) -> StoredArray:
    return StoredArray(stored.shape[1:], lambda: stored.read()[expert])
