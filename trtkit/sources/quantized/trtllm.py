"""The quantized layers of TensorRT-LLM checkpoints, as written by ModelOpt's `export_tensorrt_llm_checkpoint`.

They are those of its Hugging Face exports under other names, by rank. The output of TensorRT-LLM's own
`convert_checkpoint.py` for weight-only kernels has the layout of one GPU's kernel, and is refused.
"""

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from trtkit.errors import Problem, ProblemsError, SourceError
from trtkit.quantized_matrix import KvQuantization, QuantizedMatrix, scales_of_pairs
from trtkit.sources.checkpoint import StoredArray
from trtkit.sources.quantized.layers import Parts, Stored, layers, number, replaced
from trtkit.sources.quantized.modelopt import modelopt_matrix, paired_rows

if TYPE_CHECKING:
    from trtkit.arrays import Array

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
"""Supported values of `quantization.quant_algo`."""
CACHES = ("FP8", "INT8")
"""Supported values of `quantization.kv_cache_quant_algo`."""
_NAMES = {
    "weight": "weight",
    "weights_scaling_factor": "weight_scale",
    "weights_scaling_factor_2": "weight_scale_2",
    "activation_scaling_factor": "input_scale",
    "prequant_scaling_factor": "pre_quant_scale",
}
"""ModelOpt's names of a layer's tensors by TensorRT-LLM's."""
_KV_SCALE = re.compile(r"transformer\.layers\.(\d+)\.attention\.(kv|k|v)_cache_scaling_factor")
_KERNEL = ("per_channel_scale", "weights_scaling_factor_interleaved", "zero")


def quantized_rank(stored: Stored, config: Mapping[str, Any]) -> Parts:
    """Return a rank's tensors, each quantized layer as one matrix, without the scales of caches.

    Raises ProblemsError naming layers that have a kernel's layout or cannot be read.
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
    """Return how caches are quantized: by the scale of a layer's keys, values or both; 1 if fp8 has none.

    Raises SourceError for int8 caches without scales.
    """
    kind = (config.get("quantization") or {}).get("kv_cache_quant_algo")
    if kind is None:
        return None
    names = {(int(match[1]), match[2]): name for name in stored if (match := _KV_SCALE.fullmatch(name))}

    def scale(layer: int, cache: str) -> float:
        name = names.get((layer, cache), names.get((layer, "kv")))
        if name is None and kind == "INT8":
            raise SourceError("scales of int8 caches are missing for some layers", fix="export the checkpoint again")
        return 1.0 if name is None else number({"scale": stored[name]}, "scale")

    keys, values = ([scale(layer, cache) for layer in range(int(config["num_hidden_layers"]))] for cache in "kv")
    return KvQuantization("int8" if kind == "INT8" else "fp8", scales_of_pairs(keys, values))


_ROUNDED_LATER = "TensorRT-LLM has no tensors for int8 weights alone: it rounds the original weights when it builds"


def algorithm_of(matrix: QuantizedMatrix) -> str:
    """Return the `quant_algo` of a matrix. Raises SourceError if TensorRT-LLM's engines do not support such a layer."""
    inputs, fix = matrix.inputs, "quantize with int8_sq, int4_awq, fp8 or nvfp4"
    if matrix.columns is not None or matrix.offsets is not None:
        what = "zero points" if matrix.columns is None else "columns ordered by activation (act-order)"
        raise SourceError(f"{what} are laid out for one GPU's kernel in these checkpoints", fix=fix)
    if matrix.format == "int8" and inputs is None:
        raise SourceError(_ROUNDED_LATER, fix="export the original model, and set `quant_algo` to `W8A16` there")
    if inputs is not None and inputs.is_per_token:
        raise SourceError("inputs scaled by token are laid out for one GPU's kernel in these checkpoints", fix=fix)
    kind = (matrix.format, None if inputs is None else inputs.format, matrix.scales.ndim)
    has_factors = matrix.input_factors is not None
    if kind in (("int8", "int8", 0), ("int8", "int8", 1)):
        return "W8A8_SQ_PER_CHANNEL"
    if kind == ("int4", None, 2):
        return "W4A16_AWQ"
    if kind == ("fp8", "fp8", 0) and not has_factors:
        return "FP8"
    if kind == ("fp4", "fp4", 2) and not has_factors:
        return "NVFP4"
    scales = ("one scale", "a scale for each row", "scales for blocks")[matrix.scales.ndim]
    rounded = "in 16 bits" if inputs is None else f"in {inputs.format}"
    what = f"TensorRT-LLM has no layer of {matrix.format} weights with {scales} and inputs {rounded}"
    raise SourceError(f"{what}{', multiplied by factors first' if has_factors else ''}", fix=fix)


def quantized_tensors(matrix: QuantizedMatrix, dtype: np.dtype, *, has_factors: bool) -> "dict[str, Array]":
    """Return a layer's tensors by the suffix of their names. dtype: of factors; missing ones are 1.

    has_factors: whether the model's layers multiply their inputs by factors first.
    """
    scales = np.asarray(matrix.scales, np.float32)
    tensors = {"weight": matrix.codes, "weight_scale": scales.reshape(-1)}
    if matrix.format == "int8":
        tensors["weight_scale"] = np.broadcast_to(scales, matrix.shape[:1])
    elif matrix.format == "int4":
        tensors |= {"weight": paired_rows(matrix.codes).view(np.int8), "weight_scale": scales}
    elif matrix.format == "fp4":
        tensors |= {"weight_scale": matrix.scales, "weight_scale_2": np.array(matrix.outer_scale, np.float32)}
    if matrix.inputs is not None:
        shape = () if matrix.format == "fp4" else (1,)
        tensors["input_scale"] = np.full(shape, matrix.inputs.scale, np.float32)
    if has_factors:
        factors = np.ones(matrix.shape[1]) if matrix.input_factors is None else matrix.input_factors
        tensors["pre_quant_scale"] = factors.astype(dtype)
    names = {modelopt: name for name, modelopt in _NAMES.items()}
    return {names[name]: np.require(array, requirements="C") for name, array in tensors.items()}


def with_scale(matrix: QuantizedMatrix, scale: np.float32, input_scale: float) -> QuantizedMatrix:
    """Return an fp8 matrix of a single scale with another one, its codes rounded again, and another input scale."""
    assert matrix.inputs is not None
    codes = (matrix.products() / scale).astype(matrix.codes.dtype)
    inputs = replace(matrix.inputs, scale=input_scale)
    return replace(matrix, codes=codes, scales=np.asarray(scale), inputs=inputs)


def cache_tensors(caches: KvQuantization, layers: range) -> "dict[str, Array]":
    """Return the cache scales of some layers, numbered from 0, by name: each one, and the larger one for both.

    TensorRT-LLM uses the larger one.
    """
    tensors = {}
    for index, layer in enumerate(layers):
        scales = caches.scales[layer]
        named = {"k": scales["key"], "v": scales["value"], "kv": max(scales.values())}
        for cache, scale in named.items():
            name = f"transformer.layers.{index}.attention.{cache}_cache_scaling_factor"
            tensors[name] = np.array([scale], np.float32)
    return tensors
