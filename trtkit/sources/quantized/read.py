"""Detects which tool quantized a checkpoint, and reads it."""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from trtkit.errors import SourceError
from trtkit.quantized_matrix import KvQuantization, QuantizedInputs, QuantizedMatrix
from trtkit.sources.quantized import mxfp4
from trtkit.sources.quantized.bitnet import bitnet_layers
from trtkit.sources.quantized.compressed_tensors import compressed_layers
from trtkit.sources.quantized.layers import (
    Parts,
    check_group,
    check_rest,
    integer_matrix,
    layers,
    number,
    part,
    replaced,
    row_scales,
    unsigned,
)
from trtkit.sources.quantized.modelopt import modelopt_layers
from trtkit.sources.safetensors_file import read_json

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from trtkit.arrays import Array, MatrixShape
    from trtkit.quantization_methods import CacheFormat
    from trtkit.sources.quantized.layers import Stored

_Json = dict[str, Any]
_KV_SCALE = re.compile(r"\.(\d+)\..*(?:[._](?P<kind>k|v|latent)_scale|\.(?P<old>[kv])_proj\.output_scale)$")
_CACHES = {"k": "key", "v": "value", "latent": "latent"}


@dataclass(frozen=True)
class Quantized:
    """The content of a quantized checkpoint. method: the tool that quantized it; empty if nothing is quantized.

    kv_cache: None if caches have the network's type.
    """

    stored: Parts
    method: str = ""
    kv_cache: KvQuantization | None = None


def read_quantized(folder: Path, config: Mapping[str, Any], stored: Stored) -> Quantized:
    """Return a folder's tensors with each quantized layer as one matrix; unchanged if nothing is quantized.

    config: the fields of its config.json. Raises SourceError for an unknown `quant_method`, ProblemsError for layers
    that cannot be read.
    """
    quantization = declared(folder, config)
    if quantization is None:
        return Quantized(dict(stored))
    method = str(quantization.get("quant_method", "modelopt"))
    if method == mxfp4.METHOD:
        return Quantized(mxfp4.mxfp4_experts(stored), method)
    if method not in _READERS:
        known = ", ".join(f"`{name}`" for name in (*_READERS, mxfp4.METHOD))
        raise SourceError(f"`quant_method` is `{method}`", str(folder / "config.json"), f"known: {known}")
    rest, kv_cache = _kv_cache(stored, quantization)
    tensors = _READERS[method](rest, quantization)
    check_rest(tensors)
    is_sparse_only = method == "modelopt" and quantization.get("quant_algo") is None  # pruned, and not quantized
    if kv_cache is None and not is_sparse_only and not any(array.is_quantized for array in tensors.values()):
        what = f"`quantization_config` states `{method}`, but no weight is quantized"
        raise SourceError(what, str(folder / "config.json"), "remove `quantization_config`, or take the right weights")
    return Quantized(tensors, method, kv_cache)


def declared(folder: Path, config: Mapping[str, Any]) -> _Json | None:
    """Return a checkpoint's declared quantization: from config.json, or from ModelOpt's file next to it."""
    quantization = config.get("quantization_config")
    if isinstance(quantization, dict):
        return quantization
    beside = folder / "hf_quant_config.json"
    if beside.is_file():
        section = read_json(beside).get("quantization")
        return section if isinstance(section, dict) else {}
    return None


def awq_layers(stored: Stored, quantization: Mapping[str, Any]) -> Parts:
    """Return a checkpoint's tensors, each quantized layer as one matrix. quantization: its `quantization_config`.

    Raises SourceError for versions other than `gemm`, ProblemsError naming layers that cannot be read.

    A linear layer has `qweight` int32 [in, out / 8], `qzeros` int32 [in / group, out / 8] and `scales` [in / group,
    out]. A word holds eight columns, from its lowest bits on in the order 0 2 4 6 1 3 5 7. Source:
    `awq/modules/linear/gemm.py`, https://github.com/casper-hansen/AutoAWQ
    """
    version = str(quantization.get("version", "gemm")).lower()
    bits = int(quantization.get("bits", quantization.get("w_bit", 4)))
    if version != "gemm":
        what = f"AWQ's version `{version}` is not supported; `gemm` is"
        raise SourceError(what, "quantization_config.version", 'quantize again with `"version": "GEMM"`')
    if bits != 4:
        raise SourceError(f"AWQ of {bits} bits is not known", "quantization_config.bits", "quantize again with 4")
    group = int(quantization.get("group_size", quantization.get("q_group_size", 128)))
    return replaced(stored, layers(stored, "qweight", _AWQ_PARTS), lambda _, parts: _awq_matrix(parts, group))


def gptq_layers(stored: Stored, quantization: Mapping[str, Any]) -> Parts:
    """Return a checkpoint's tensors, each quantized layer as one matrix. quantization: its `quantization_config`.

    Raises SourceError for unknown formats and bit widths, ProblemsError naming layers that cannot be read.

    A linear layer has `qweight` int32 [in * bits / 32, out], `qzeros` int32 [groups, out * bits / 32], `scales`
    [groups, out] and `g_idx` [in], each column's group. Format `gptq` stores zero points minus one, `gptq_v2`
    unchanged. Source: `qlinear_cuda_old.py`, https://github.com/AutoGPTQ/AutoGPTQ, and
    https://github.com/ModelCloud/GPTQModel
    """
    kind, bits = str(quantization.get("checkpoint_format") or "gptq"), int(quantization.get("bits", 4))
    if kind not in _LESS:
        known = "quantize again with `gptq` or `gptq_v2`"
        raise SourceError(f"GPTQ's format `{kind}` is not known", "quantization_config.checkpoint_format", known)
    if bits not in (4, 8):
        fix = "quantize again with 4 or 8"
        raise SourceError(f"TensorRT does not support {bits}-bit weights", "quantization_config.bits", fix)
    group, less = int(quantization.get("group_size", 128)), _LESS[kind]
    return replaced(
        stored, layers(stored, "qweight", _GPTQ_PARTS), lambda _, parts: _gptq_matrix(parts, bits, group, less)
    )


def fp8_layers(stored: Stored, quantization: Mapping[str, Any]) -> Parts:
    """Return a checkpoint's tensors, each quantized layer as one matrix. quantization: its `quantization_config`.

    Raises ProblemsError naming layers that cannot be read.

    A linear layer has `weight` fp8 [out, in] and `weight_scale_inv`, by which its codes are multiplied: one number, or
    one per block of rows and columns. `activation_scale` is that of its inputs; inputs scaled by block at run time are
    left unquantized here. Source: `transformers/integrations/finegrained_fp8.py`
    """
    rows, columns = quantization.get("weight_block_size") or (0, 0)
    block = (int(rows), int(columns))
    return replaced(stored, layers(stored, "weight_scale_inv", _FP8_PARTS), lambda _, parts: _fp8_matrix(parts, block))


_READERS: dict[str, Callable[[Stored, Mapping[str, Any]], Parts]] = {
    "modelopt": modelopt_layers,
    "awq": awq_layers,
    "gptq": gptq_layers,
    "compressed-tensors": compressed_layers,
    "fp8": fp8_layers,
    "bitnet": bitnet_layers,
}


def _kv_cache(stored: Stored, quantization: _Json) -> tuple[Parts, KvQuantization | None]:
    """Remove the scales of keys and values from a checkpoint, and return both."""
    matches = {name: match for name in stored if (match := _KV_SCALE.search(name))}
    rest = {name: array for name, array in stored.items() if name not in matches}
    if not matches:
        return rest, None
    scales: dict[int, dict[str, float]] = defaultdict(dict)
    for name, match in matches.items():
        cache = _CACHES[match["kind"] or match["old"]]
        scales[int(match[1])][cache] = number({"scale": stored[name]}, "scale")
    return rest, KvQuantization(_kv_format(quantization), dict(sorted(scales.items())))


def _kv_format(quantization: _Json) -> CacheFormat:
    """Return the caches' type. Raises SourceError for an unsupported one."""
    scheme = quantization.get("kv_cache_scheme")
    kind = str(quantization.get("kv_cache_quant_algo") or "FP8").upper()
    if isinstance(scheme, dict) and "kv_cache_quant_algo" not in quantization:
        kind = f"{'FP' if scheme.get('type') == 'float' else 'INT'}{scheme.get('num_bits', 8)}"
    if kind not in ("INT8", "FP8"):
        raise SourceError(f"caches in {kind} are not supported", "quantization_config", "use FP8 or INT8")
    return "int8" if kind == "INT8" else "fp8"


_AWQ_PARTS = ("qweight", "qzeros", "scales")

_PLACES = (0, 4, 1, 5, 2, 6, 3, 7)
"""The position of each of eight columns in a word."""


def _awq_matrix(parts: Parts, group: int) -> QuantizedMatrix:
    """Return one layer's matrix. group: columns that share a scale; -1 for all."""
    numbers = _ordered(part(parts, "qweight")).T
    check_group(part(parts, "scales").T, numbers.shape[1], group)
    zeros = _ordered(part(parts, "qzeros")).T if "qzeros" in parts else None
    return integer_matrix(numbers, 4, part(parts, "scales").T, zeros)


def _ordered(words: Array) -> Array:
    """Return the numbers of words with eight columns each in AWQ's order."""
    numbers = unsigned(words, 4)
    return numbers.reshape(len(numbers), -1, 8)[:, :, list(_PLACES)].reshape(numbers.shape)


_GPTQ_PARTS = ("qweight", "qzeros", "scales", "g_idx")

_LESS = {"gptq": 1, "gptq_v2": 0}
"""The amount subtracted from stored zero points."""


def _gptq_matrix(parts: Parts, bits: int, group: int, less: int) -> QuantizedMatrix:
    """Return one layer's matrix. bits, group: if it has no `g_idx`, by which layers' own may be told."""
    words, scales = part(parts, "qweight"), part(parts, "scales")
    groups = np.asarray(part(parts, "g_idx")) if "g_idx" in parts else None
    if groups is not None and groups.size and len(words) * 32 % groups.size == 0:
        bits = len(words) * 32 // groups.size
    numbers = unsigned(words.T, bits)
    if groups is None:
        check_group(scales.T, numbers.shape[1], group)
    elif groups.shape != (numbers.shape[1],):
        what = f"`g_idx` has {groups.size} columns, `qweight` {numbers.shape[1]}"
        raise SourceError(what, fix="copy the checkpoint's files again")
    zeros = (unsigned(part(parts, "qzeros"), bits) + np.uint8(less)) & np.uint8((1 << bits) - 1)
    return integer_matrix(numbers, bits, scales.T, zeros.T, groups)


_FP8_PARTS = ("weight", "weight_scale_inv", "activation_scale")


def _fp8_matrix(parts: Parts, block: MatrixShape) -> QuantizedMatrix:
    codes = part(parts, "weight")
    if codes.ndim != 2 or codes.dtype.name != "float8_e4m3fn":
        raise SourceError(f"codes are {codes.dtype.name} of {codes.ndim} axes, not float8_e4m3fn of 2", fix="use fp8")
    inputs = QuantizedInputs("fp8", number(parts, "activation_scale")) if "activation_scale" in parts else None
    return QuantizedMatrix("fp8", codes, row_scales(part(parts, "weight_scale_inv"), codes.shape, block), inputs=inputs)
