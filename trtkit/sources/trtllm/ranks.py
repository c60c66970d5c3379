"""Splits Hugging Face weights into the ranks of a TensorRT-LLM checkpoint: the inverse of `weights`, by its tables.

Layout: ModelOpt's `export_tensorrt_llm_checkpoint`, release 0.47, and TensorRT-LLM's conversion scripts, release 1.2.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from trtkit.errors import Problem, ProblemsError
from trtkit.sources.checkpoint import StoredArray
from trtkit.sources.joined_array import joined, take_columns, take_listed, take_rows, zero_rows
from trtkit.sources.trtllm.config import pipeline_size, tensor_size
from trtkit.sources.trtllm.families import family_of
from trtkit.sources.trtllm.fields import head_size, key_value_heads
from trtkit.sources.trtllm.weights import SPLIT_AXIS, key_head_order

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from trtkit.sources.trtllm.fields import Experts, Family, Fields

    Arrays = dict[str, StoredArray]

_LAST = ("transformer.ln_f", "lm_head")
"""Modules of the last pipeline stage; the others outside of layers belong to the first."""
_SUFFIXES = ("weight", "bias")


@dataclass(frozen=True)
class _Part:
    """The view of one of `count` tensor-parallel ranks on a model."""

    config: Fields
    family: Family
    index: int
    count: int

    def heads(self, stored: StoredArray, heads: int, size: int) -> StoredArray:
        """Return the rank's heads, of `size` rows each. With fewer heads than ranks, adjacent ranks share one."""
        if heads >= self.count:
            rows = heads // self.count * size
            return take_rows(stored, self.index * rows, rows)
        return take_rows(stored, self.index * heads // self.count * size, size)

    def rows(self, stored: StoredArray) -> StoredArray:
        rows = stored.shape[0] // self.count
        return stored if self.count == 1 else take_rows(stored, self.index * rows, rows)

    def columns(self, stored: StoredArray) -> StoredArray:
        columns = stored.shape[1] // self.count
        return stored if self.count == 1 else take_columns(stored, self.index * columns, columns)


def rank_arrays(weights: Mapping[str, StoredArray], config: Fields, rank: int) -> Arrays:
    """Return a rank's tensors by TensorRT-LLM name, sliced on reading.

    weights: by Hugging Face name. config: the checkpoint's own, whose `mapping` defines the number of ranks. Raises
    ProblemsError naming weights unknown to the architecture.
    """
    family, tensors, stages = family_of(config), tensor_size(config), pipeline_size(config)
    part, stage = _Part(config, family, rank % tensors, tensors), rank // tensors
    by_layer = _by_layer(weights, config, family)
    count = len(by_layer) // stages
    arrays = _outside(weights, part, is_first=stage == 0, is_last=stage == stages - 1)
    for number, layer in enumerate(by_layer[stage * count : (stage + 1) * count]):
        arrays |= {f"transformer.layers.{number}.{name}": array for name, array in _layer(layer, part).items()}
    return arrays


def _by_layer(weights: Mapping[str, StoredArray], config: Fields, family: Family) -> list[Arrays]:
    """Return each layer's weights by name within the layer. Raises ProblemsError."""
    pattern = re.compile(rf"{re.escape(family.layers)}\.(\d+)\.(.+)")
    layers: list[Arrays] = [{} for _ in range(config["num_hidden_layers"])]
    known = {f"{module}.{suffix}" for module in family.outside.values() for suffix in _SUFFIXES}
    inside = {f"{module}.{suffix}" for module in (*family.qkv, *family.inside.values()) for suffix in _SUFFIXES}
    inside |= _expert_names(config, family.experts)
    unknown = []
    for name, stored in weights.items():
        match = pattern.fullmatch(name)
        if match is not None and match[2] in inside:
            layers[int(match[1])][match[2]] = stored
        elif name not in known:
            unknown.append(Problem(f"`{name}` of shape {list(stored.shape)}"))
    if unknown:
        what = f"weights for which a TensorRT-LLM checkpoint of `{config['architecture']}` has no tensors"
        raise ProblemsError(what, unknown)
    return layers


def _expert_names(config: Fields, experts: Experts | None) -> set[str]:
    """Return the names of a layer's experts within the layer."""
    if experts is None:
        return set()
    modules = [f"{experts.module}.{expert}" for expert in range(config["moe"]["num_experts"])]
    modules += [experts.shared] if experts.shared is not None else []
    return {f"{module}.{name}.weight" for module in modules for name in (experts.gate, experts.up, experts.down)}


def _outside(weights: Mapping[str, StoredArray], part: _Part, *, is_first: bool, is_last: bool) -> Arrays:
    """Return a stage's tensors outside of layers. Tables are split by rows, padded with zeros if they do not divide."""
    arrays: Arrays = {}
    for module, hf in part.family.outside.items():
        for suffix in _SUFFIXES:
            stored = weights.get(f"{hf}.{suffix}")
            if stored is None or not (is_last if module in _LAST else is_first):
                continue
            if module == "transformer.position_embedding" and part.family.model_type == "opt":
                stored = take_rows(stored, 2, stored.shape[0] - 2)  # nothing reads the first two
            if module == "lm_head" or module.endswith("_embedding"):
                padding = -stored.shape[0] % part.count
                stored = part.rows(joined([stored, zero_rows(stored, padding)], 0) if padding else stored)
            arrays[f"{module}.{suffix}"] = _plus_one(stored, part.family, module) if suffix == "weight" else stored
    return arrays


def _layer(layer: Mapping[str, StoredArray], part: _Part) -> Arrays:
    """Return one layer's tensors by name within the layer."""
    family, arrays = part.family, {}
    for suffix in _SUFFIXES:
        if f"{family.qkv[0]}.{suffix}" in layer:
            projections = [layer[f"{module}.{suffix}"] for module in family.qkv]
            arrays[f"attention.qkv.{suffix}"] = _qkv(projections, part)
    names = {hf: module for module, hf in family.inside.items()}  # of several names for one module, the last
    for hf, module in names.items():
        for suffix in _SUFFIXES:
            if f"{hf}.{suffix}" in layer:
                arrays[f"{module}.{suffix}"] = _inside(layer[f"{hf}.{suffix}"], part, module, suffix)
    if family.experts is not None:
        arrays |= _experts(layer, part, family.experts)
    return arrays


def _qkv(projections: Sequence[StoredArray], part: _Part) -> StoredArray:
    """Return a rank's queries, keys and values as one matrix or bias: [q | k | v]."""
    config, family = part.config, part.family
    size, heads, keys = head_size(config), config["num_attention_heads"], key_value_heads(config)
    if len(projections) == 1:
        whole = _out_in(projections[0], family)
        if family.rows == "by key head":
            whole = take_listed(whole, np.argsort(key_head_order(whole.shape[0], config, family.qkv[0])))
        starts = ((0, heads), (heads, keys), (heads + keys, keys))
        projections = [take_rows(whole, start * size, count * size) for start, count in starts]
    counts = (heads, keys, keys)
    return joined([part.heads(stored, count, size) for stored, count in zip(projections, counts, strict=True)], 0)


def _inside(stored: StoredArray, part: _Part, module: str, suffix: str) -> StoredArray:
    """Return a rank's part of one tensor of a layer. Per-head norms are split like the heads."""
    if suffix == "weight":
        stored = _plus_one(_out_in(stored, part.family), part.family, module)
    if module == part.family.swapped:  # its own inverse
        half = stored.shape[0] // 2
        stored = joined([take_rows(stored, half, half), take_rows(stored, 0, half)], 0)
    if module.endswith("_layernorm") and len(stored.shape) == 2:
        return part.heads(stored, stored.shape[0], 1)
    axis = SPLIT_AXIS.get(f"{module}.{suffix}")
    if axis is None:
        return stored
    return part.columns(stored) if axis else part.rows(stored)


def _out_in(stored: StoredArray, family: Family) -> StoredArray:
    """Return a matrix as [out, in]; other tensors unchanged. Quantized ones have this layout in all families."""
    if stored.is_quantized or not family.is_in_out or len(stored.shape) != 2:
        return stored
    return StoredArray(stored.shape[::-1], lambda: stored.read().T)


def _plus_one(stored: StoredArray, family: Family, module: str) -> StoredArray:
    """Return a norm's weight with 1 added, in fp32, if the network would add it; other tensors unchanged."""
    if module not in family.plus_one:
        return stored
    return StoredArray(stored.shape, lambda: stored.read().astype(np.float32) + np.float32(1))


def _experts(layer: Mapping[str, StoredArray], part: _Part, experts: Experts) -> Arrays:
    """Return a rank's part of all experts: [E, up then gate, H] and [E, H, down], and of the shared one likewise."""
    count = part.config["moe"]["num_experts"]
    both = [_expert(layer, f"{experts.module}.{expert}", part, experts) for expert in range(count)]
    arrays = {
        "mlp.fc.weight": _stacked([up for up, _ in both]),
        "mlp.proj.weight": _stacked([down for _, down in both]),
    }
    if experts.shared is not None:
        up, down = _expert(layer, experts.shared, part, experts)
        arrays |= {"mlp.shared_expert.fc.weight": up, "mlp.shared_expert.proj.weight": down}
    return arrays


def _expert(
    layer: Mapping[str, StoredArray], module: str, part: _Part, experts: Experts
) -> tuple[StoredArray, StoredArray]:
    """Return a rank's part of one expert: up over gate, and down."""
    rows = [part.rows(layer[f"{module}.{name}.weight"]) for name in (experts.up, experts.gate)]
    return joined(rows, 0), part.columns(layer[f"{module}.{experts.down}.weight"])


def _stacked(matrices: Sequence[StoredArray]) -> StoredArray:
    shape = (len(matrices), *matrices[0].shape)
    is_quantized = any(matrix.is_quantized for matrix in matrices)
    return StoredArray(shape, lambda: np.stack([matrix.read() for matrix in matrices]), is_quantized)
