"""Write models of transformers as GGUF files, as llama.cpp's convert_hf_to_gguf.py does.

Keys are named by gguf.GGUFWriter, which trtkit does not read.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import gguf
import numpy as np
from gguf.constants import MODEL_ARCH

from tests.unit.sources.gguf.convert import stored_tensors

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

Array = np.ndarray[Any, Any]


def write_model(
    path: Path,
    arch: str,
    config: dict[str, Any],
    checkpoint: dict[str, Array],
    more: Callable[[gguf.GGUFWriter], None] = lambda _: None,
    kind: Callable[[str], str] = lambda _: "F32",
    *,
    is_older: bool = False,
) -> Path:
    """Write config and weights. arch: a name in gguf.MODEL_ARCH. more: adds keys and tensors that only some have.

    kind: the type to store a matrix in, by its name in the file. is_older: weights that converters of today take apart
        are whole.
    """
    model_arch = MODEL_ARCH[arch]
    writer = gguf.GGUFWriter(path, gguf.MODEL_ARCH_NAMES[model_arch])
    add_sizes(writer, config)
    more(writer)
    for stored, weight in stored_tensors(arch, checkpoint, config, is_older=is_older):
        array = np.ascontiguousarray(weight)
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
