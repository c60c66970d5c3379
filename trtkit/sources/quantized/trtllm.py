"""The quantized layers of TensorRT-LLM checkpoints, as ModelOpt's `export_tensorrt_llm_checkpoint` writes them.

They are those of its Hugging Face exports by other names, rank by rank. What TensorRT-LLM's own `convert_checkpoint.py`
wrote for weight-only kernels is laid out for one GPU's kernel, and is refused.
"""

import re
from collections.abc import Mapping
from typing import Any

from trtkit.errors import Problem, ProblemsError, SourceError
from trtkit.quantized_matrix import KvQuantization, QuantizedMatrix, scales_of_pairs
from trtkit.sources.checkpoint import StoredArray
from trtkit.sources.quantized.layers import Parts, Stored, layers, number, replaced
from trtkit.sources.quantized.modelopt import modelopt_matrix

ALGORITHMS = (
    "W8A16",
    "W4A16",
    "W4A16_AWQ",
    "W8A8_SQ_PER_CHANNEL",
    "FP8",
    "FP8_PER_CHANNEL_PER_TOKEN",
    "NVFP4",
    "MXFP8",
)
"""Values of `quantization.quant_algo` that are read."""
CACHES = ("FP8", "INT8")
"""Values of `quantization.kv_cache_quant_algo` that are read."""
_NAMES = {
    "weight": "weight",
    "weights_scaling_factor": "weight_scale",
    "weights_scaling_factor_2": "weight_scale_2",
    "activation_scaling_factor": "input_scale",
    "prequant_scaling_factor": "pre_quant_scale",
}
"""ModelOpt's names of a layer's tensors by TensorRT-LLM's."""
_KV_SCALE = re.compile(r"transformer\.layers\.(\d+)\.attention\.kv_cache_scaling_factor")
_KERNEL = ("per_channel_scale", "weights_scaling_factor_interleaved", "zero")


def quantized_rank(stored: Stored, config: Mapping[str, Any]) -> Parts:
    """Return a rank's tensors, each quantized layer as one matrix, without scales of caches.

    Raises ProblemsError naming layers that are laid out for a kernel or cannot be read.
    """
    laid_out = [name for name in stored if name.rpartition(".")[2] in _KERNEL]
    if laid_out:
        what = "weights are laid out for one GPU's kernel"
        fix = "export the model with ModelOpt, or build from the Hugging Face model"
        raise ProblemsError("quantized layers that cannot be read", [Problem(what, name) for name in laid_out[:5]], fix)
    algorithm = str((config.get("quantization") or {}).get("quant_algo"))
    kept = {name: array for name, array in stored.items() if not _KV_SCALE.fullmatch(name)}
    modules = layers(kept, "weights_scaling_factor", tuple(_NAMES))
    return replaced(kept, modules, lambda _, parts: _matrix(parts, algorithm))


def _matrix(parts: Parts, algorithm: str) -> QuantizedMatrix:
    named = {_NAMES[name]: array for name, array in parts.items()}
    if algorithm.startswith("W4A16") and "weight" in named:  # packed into int8
        packed = named["weight"]
        named["weight"] = StoredArray(packed.shape, lambda: packed.read().view("uint8"))
    return modelopt_matrix(named, algorithm)


def cache_scales(stored: Stored, config: Mapping[str, Any]) -> KvQuantization | None:
    """Return how caches are quantized: keys and values of a layer share a scale, 1 where fp8 has none.

    Raises SourceError for int8 caches without scales.
    """
    kind = (config.get("quantization") or {}).get("kv_cache_quant_algo")
    if kind is None:
        return None
    names = {int(match[1]): name for name in stored if (match := _KV_SCALE.fullmatch(name))}
    numbers = range(int(config["num_hidden_layers"]))
    if kind == "INT8" and set(names) != set(numbers):
        raise SourceError("scales of int8 caches are missing for some layers", fix="export the checkpoint again")
    scales = tuple(number({"scale": stored[names[layer]]}, "scale") if layer in names else 1.0 for layer in numbers)
    return KvQuantization("int8" if kind == "INT8" else "fp8", scales_of_pairs(scales, scales))
