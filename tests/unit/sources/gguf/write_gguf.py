"""Write models of transformers as GGUF files, as llama.cpp's convert_hf_to_gguf.py does.

Keys are named by gguf.GGUFWriter and tensors by gguf's tensor map, neither of which trtkit reads.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import gguf
import numpy as np
from gguf.constants import MODEL_ARCH

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

Array = np.ndarray[Any, Any]
_EXPERT = re.compile(r"(.+\.experts)\.(\d+)\.(\w+)\.(weight|bias)")
# Parameters that are not `weight` or `bias` get a suffix.
_RENAMED = re.compile(r"(?:(\S+e_score_correction)_(bias)|\S+sinks)$")
# Granite's experts are cut out of arrays of all, for which the tensor map has Mixtral's names.
_JETMOE = {"gate_proj": "w1", "up_proj": "w3", "down_proj": "w2"}
_PERMUTED = ("LLAMA", "GRANITE", "GRANITE_MOE", "SMOLLM3", "ARCEE")


def write_model(
    path: Path,
    arch: str,
    config: dict[str, Any],
    checkpoint: dict[str, Array],
    more: Callable[[gguf.GGUFWriter], None] = lambda _: None,
    kind: Callable[[str], str] = lambda _: "F32",
) -> Path:
    """Write config and weights. arch: a name in gguf.MODEL_ARCH. more: adds keys and tensors that only some have.

    kind: the type to store a matrix in, by its name in the file.
    """
    model_arch = MODEL_ARCH[arch]
    writer = gguf.GGUFWriter(path, gguf.MODEL_ARCH_NAMES[model_arch])
    add_sizes(writer, config)
    more(writer)
    names = gguf.get_tensor_name_map(model_arch, 8)
    for name, weight in _stacked(checkpoint):
        stored = names.get_name(name, (".weight", ".bias"))
        assert stored is not None, name
        array = np.ascontiguousarray(_converted(arch, name, weight, config))
        if array.ndim == 1 or kind(stored) == "F32":
            writer.add_tensor(stored, array)
        else:
            as_type = gguf.GGMLQuantizationType[kind(stored)]
            writer.add_tensor(stored, gguf.quants.quantize(array, as_type), raw_dtype=as_type)
    return finish(writer, path)


def tiny(
    path: Path, keys: Callable[[gguf.GGUFWriter], Any] | None = None, architecture: str = "llama", layers: int = 1
) -> Path:
    """Write the metadata of a small model, and a table of embeddings."""
    writer = gguf.GGUFWriter(path, architecture)
    sizes = {"hidden_size": 16, "intermediate_size": 24, "num_attention_heads": 4, "num_key_value_heads": 2}
    limits = {"num_hidden_layers": 1, "max_position_embeddings": 64, "rms_norm_eps": 1e-5}
    add_sizes(writer, {**sizes, **limits})
    if keys is not None:
        keys(writer)
    writer.add_tensor("token_embd.weight", np.ones((5, 16), np.float32))
    return finish(writer, path)


def write_tensor(path: Path, array: Array, type_name: str) -> Path:
    """Write one tensor; quantized ones as their bytes."""
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_tensor("first", np.ones(3, np.float32))
    writer.add_tensor("x", array, raw_dtype=gguf.GGMLQuantizationType[type_name])
    return finish(writer, path)


def finish(writer: gguf.GGUFWriter, path: Path) -> Path:
    """Write what a writer holds."""
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def add_sizes(writer: gguf.GGUFWriter, config: dict[str, Any]) -> None:
    """Add the keys that converters of all models write, where the config has what they say."""
    adders = {
        ("num_hidden_layers", "n_layer"): writer.add_block_count,
        ("max_position_embeddings", "n_positions"): writer.add_context_length,
        ("hidden_size", "n_embd"): writer.add_embedding_length,
        ("intermediate_size", "n_inner"): writer.add_feed_forward_length,
        ("num_attention_heads", "n_head"): writer.add_head_count,
        ("num_key_value_heads",): writer.add_head_count_kv,
        ("rms_norm_eps",): writer.add_layer_norm_rms_eps,
        ("layer_norm_eps", "layer_norm_epsilon", "norm_epsilon"): writer.add_layer_norm_eps,
        ("num_local_experts", "num_experts", "n_routed_experts"): writer.add_expert_count,
        ("num_experts_per_tok",): writer.add_expert_used_count,
        ("head_dim",): writer.add_key_length,
    }
    for fields, add in adders.items():
        value = next((config[name] for name in fields if config.get(name) is not None), None)
        if value is not None:
            add(value)
    if "head_dim" in config:
        writer.add_value_length(config["head_dim"])
    rope = config.get("rope_parameters") or {}
    rope = rope.get("full_attention", rope)
    if "rope_theta" in rope:
        writer.add_rope_freq_base(rope["rope_theta"])


def _stacked(checkpoint: dict[str, Array]) -> Iterator[tuple[str, Array]]:
    """Yield weights, those of all experts as one."""
    experts: dict[str, list[Array]] = {}
    for name, array in checkpoint.items():
        expert = _EXPERT.fullmatch(name)
        if expert is None:
            named = _RENAMED.fullmatch(name)
            suffixed = name if named is None else f"{named[1]}.{named[2]}" if named[2] else f"{name}.weight"
            yield suffixed, array
        else:
            kind = _JETMOE.get(expert[3], expert[3]) if "block_sparse_moe" in name else expert[3]
            start = re.sub(r"model\.(layers\.\d+)\.block_sparse_moe", r"\1.feed_forward", expert[1])
            experts.setdefault(f"{start}.{kind}.{expert[4]}", []).insert(int(expert[2]), array)
    for name, arrays in experts.items():
        yield name, np.stack(arrays)


def _converted(arch: str, name: str, array: Array, config: dict[str, Any]) -> Array:
    """Return a weight as the converter stores it."""
    if arch in _PERMUTED and (heads := re.search(r"\.([qk])_proj\.", name)):
        return _permuted(array, config["num_attention_heads" if heads[1] == "q" else "num_key_value_heads"])
    if (arch.startswith("GEMMA") or arch == "NEMOTRON") and name.endswith("norm.weight"):
        return array + 1
    if arch == "GPT2" and re.search(r"\.c_(attn|proj|fc)\.weight", name):
        return array.T
    if arch == "GPTNEOX" and "query_key_value" in name:
        by_head = array.reshape(config["num_attention_heads"], 3, -1, *array.shape[1:])
        return np.concatenate([by_head[:, part].reshape(-1, *array.shape[1:]) for part in range(3)])
    return array.reshape(-1) if name.endswith("shared_expert_gate.weight") else array


def _permuted(array: Array, heads: int) -> Array:
    """Return rows with the halves of each head interleaved."""
    return array.reshape(heads, 2, array.shape[0] // heads // 2, *array.shape[1:]).swapaxes(1, 2).reshape(array.shape)
