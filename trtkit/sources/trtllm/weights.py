"""Merge the tensor-parallel ranks of a TensorRT-LLM checkpoint into Hugging Face weights."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from trtkit.errors import Problem, ProblemsError
from trtkit.sources.checkpoint import StoredArray
from trtkit.sources.joined_array import joined, take_rows
from trtkit.sources.trtllm.config import ARCHITECTURES, head_size, key_value_heads

_LAYER = re.compile(r"transformer\.layers\.(\d+)\.(.+)\.(weight|bias)")
_Ranks = Sequence[Mapping[str, StoredArray]]


@dataclass(frozen=True)
class _Family:
    """HF's modules by TensorRT-LLM's. layers: HF's prefix of a layer. is_in_out: HF stores matrices [in, out]."""

    outside: Mapping[str, str]
    inside: Mapping[str, str]
    qkv: tuple[str, ...]
    layers: str = "model.layers"
    is_in_out: bool = False


_LLAMA = _Family(
    {"transformer.vocab_embedding": "model.embed_tokens", "transformer.ln_f": "model.norm", "lm_head": "lm_head"},
    {
        "input_layernorm": "input_layernorm",
        "post_layernorm": "post_attention_layernorm",
        "attention.dense": "self_attn.o_proj",
        "mlp.fc": "mlp.gate_proj",
        "mlp.gate": "mlp.up_proj",
        "mlp.proj": "mlp.down_proj",
    },
    ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
)
_GPT2 = _Family(
    {
        "transformer.vocab_embedding": "transformer.wte",
        "transformer.position_embedding": "transformer.wpe",
        "transformer.ln_f": "transformer.ln_f",
        "lm_head": "lm_head",
    },
    {
        "input_layernorm": "ln_1",
        "post_layernorm": "ln_2",
        "attention.dense": "attn.c_proj",
        "mlp.fc": "mlp.c_fc",
        "mlp.proj": "mlp.c_proj",
    },
    ("attn.c_attn",),
    "transformer.h",
    is_in_out=True,
)
_FAMILIES = {"llama": _LLAMA, "qwen2": _LLAMA, "gpt2": _GPT2}
# The axis that ranks share out; norms, and biases of dense and proj, are the same in all of them.
_SPLIT_AXIS = {
    "lm_head.weight": 0,
    "mlp.fc.weight": 0,
    "mlp.fc.bias": 0,
    "mlp.gate.weight": 0,
    "mlp.gate.bias": 0,
    "attention.dense.weight": 1,
    "mlp.proj.weight": 1,
}


def hf_weights(ranks: _Ranks, config: Mapping[str, Any], where: str) -> dict[str, StoredArray]:
    """Return the weights by Hugging Face name, merged when they are read.

    Raises ProblemsError naming tensors that the architecture lacks.
    """
    family = _FAMILIES[ARCHITECTURES[config["architecture"]]]
    weights: dict[str, StoredArray] = {}
    unknown = []
    for name in ranks[0]:
        arrays = _named(ranks, config, family, name)
        weights |= arrays
        if not arrays:
            unknown.append(Problem(f"`{name}` of shape {list(ranks[0][name].shape)}", where))
    if unknown:
        raise ProblemsError(f"tensors that `{config['architecture']}` does not have", unknown)
    return weights


def _named(ranks: _Ranks, config: Mapping[str, Any], family: _Family, name: str) -> dict[str, StoredArray]:
    """Return what one tensor holds: a weight, or queries, keys and values; nothing where it is not known."""
    layer = _LAYER.fullmatch(name)
    if layer is None:
        module, _, suffix = name.rpartition(".")
        return {f"{family.outside[module]}.{suffix}": _outside(ranks, config, name)} if module in family.outside else {}
    number, module, suffix = layer.groups()
    start = f"{family.layers}.{number}."
    if module == "attention.qkv":
        return {f"{start}{hf}.{suffix}": stored for hf, stored in _qkv(ranks, config, family, name).items()}
    if module not in family.inside:
        return {}
    axis = _SPLIT_AXIS.get(f"{module}.{suffix}")
    stored = ranks[0][name] if axis is None else joined([rank[name] for rank in ranks], axis)
    return {f"{start}{family.inside[module]}.{suffix}": _oriented(stored, family)}


def _outside(ranks: _Ranks, config: Mapping[str, Any], name: str) -> StoredArray:
    """Return a tensor outside of layers. Embeddings may be split by either axis, or be whole in every rank."""
    parts = [rank[name] for rank in ranks]
    axis = _SPLIT_AXIS.get(name)
    if name.endswith("_embedding.weight"):
        axis = _embedding_axis(parts[0].shape, config, is_position="position" in name)
    stored = parts[0] if axis is None else joined(parts, axis)
    rows = config["vocab_size"]
    if name == "transformer.position_embedding.weight" or len(stored.shape) != 2 or stored.shape[0] <= rows:
        return stored
    return take_rows(stored, 0, rows)  # vocabularies are padded to a multiple of the ranks


def _embedding_axis(shape: tuple[int, ...], config: Mapping[str, Any], is_position: bool) -> int | None:
    """Return the axis by which an embedding table is split, None where each rank has it whole."""
    if shape[1] != config["hidden_size"]:
        return 1
    rows = config["max_position_embeddings"] if is_position else config["vocab_size"]
    return 0 if shape[0] < rows else None


def _qkv(ranks: _Ranks, config: Mapping[str, Any], family: _Family, name: str) -> dict[str, StoredArray]:
    """Return the projections of queries, keys and values by HF module; joined where HF joins them."""
    H, tp = head_size(config), len(ranks)
    queries, keys = config["num_attention_heads"] // tp * H, max(1, key_value_heads(config) // tp) * H
    # With fewer key heads than ranks, neighbouring ranks hold the same one.
    distinct = ranks[:: max(1, tp // key_value_heads(config))]
    parts = [
        joined([take_rows(rank[name], start, count) for rank in holders], 0)
        for holders, start, count in ((ranks, 0, queries), (distinct, queries, keys), (distinct, queries + keys, keys))
    ]
    if len(family.qkv) == 1:
        return {family.qkv[0]: _oriented(joined(parts, 0), family)}
    return dict(zip(family.qkv, parts, strict=True))


def _oriented(stored: StoredArray, family: _Family) -> StoredArray:
    """Return a matrix as HF's module stores it; one in few bits as it is."""
    if stored.is_quantized or not family.is_in_out or len(stored.shape) != 2:
        return stored
    return StoredArray(stored.shape[::-1], lambda: stored.read().T)
