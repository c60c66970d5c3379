"""Find out who quantized a checkpoint, and read it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from trtkit.errors import SourceError
from trtkit.quantized_matrix import KvQuantization
from trtkit.sources.quantized import mxfp4
from trtkit.sources.quantized.awq import awq_layers
from trtkit.sources.quantized.bitnet import bitnet_layers
from trtkit.sources.quantized.compressed_tensors import compressed_layers
from trtkit.sources.quantized.fp8 import fp8_layers
from trtkit.sources.quantized.gptq import gptq_layers
from trtkit.sources.quantized.layers import check_rest, number
from trtkit.sources.quantized.modelopt import modelopt_layers
from trtkit.sources.safetensors_folder import read_json

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from trtkit.quantization_methods import CacheFormat
    from trtkit.sources.quantized.layers import Parts, Stored

_Json = dict[str, Any]
_KV_SCALE = re.compile(r"\.(\d+)\..*(?:[._](?P<kind>[kv])_scale|\.(?P<old>[kv])_proj\.output_scale)$")


@dataclass(frozen=True)
class Quantized:
    """A quantized checkpoint, read. method: who made it; empty if nothing is quantized.

    kv_cache: None if caches stay in the network's type.
    """

    stored: Parts
    method: str = ""
    kv_cache: KvQuantization | None = None


def read_quantized(folder: Path, config: Mapping[str, Any], stored: Stored) -> Quantized:
    """Return a folder's tensors with each quantized layer as one matrix; as they are where nothing is quantized.

    config: the fields of its config.json. Raises SourceError for a `quant_method` that is not known, ProblemsError
    for layers that cannot be read.
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
    """Return how a checkpoint says that it is quantized: in config.json, or in ModelOpt's file next to it."""
    quantization = config.get("quantization_config")
    if isinstance(quantization, dict):
        return quantization
    beside = folder / "hf_quant_config.json"
    if beside.is_file():
        section = read_json(beside).get("quantization")
        return section if isinstance(section, dict) else {}
    return None


_READERS: dict[str, Callable[[Stored, Mapping[str, Any]], Parts]] = {
    "modelopt": modelopt_layers,
    "awq": awq_layers,
    "gptq": gptq_layers,
    "compressed-tensors": compressed_layers,
    "fp8": fp8_layers,
    "bitnet": bitnet_layers,
}


def _kv_cache(stored: Stored, quantization: _Json) -> tuple[Parts, KvQuantization | None]:
    """Take the scales of keys and values out of a checkpoint."""
    matches = {name: match for name in stored if (match := _KV_SCALE.search(name))}
    rest = {name: array for name, array in stored.items() if name not in matches}
    if not matches:
        return rest, None
    scales: dict[str, dict[int, float]] = {"k": {}, "v": {}}
    for name, match in matches.items():
        scales[match["kind"] or match["old"]][int(match[1])] = number({"scale": stored[name]}, "scale")
    layers = range(max(scales["k"], default=-1) + 1)
    if set(scales["k"]) != set(layers) or set(scales["v"]) != set(layers):
        what = "scales of keys and values are missing for some layers"
        raise SourceError(what, fix="quantize the caches of all layers, or of none")
    keys, values = (tuple(scales[kind][layer] for layer in layers) for kind in "kv")
    return rest, KvQuantization(_kv_format(quantization), keys, values)


def _kv_format(quantization: _Json) -> CacheFormat:
    """Return the caches' type. Raises SourceError for one that no network takes."""
    scheme = quantization.get("kv_cache_scheme")
    kind = str(quantization.get("kv_cache_quant_algo") or "FP8").upper()
    if isinstance(scheme, dict) and "kv_cache_quant_algo" not in quantization:
        kind = f"{'FP' if scheme.get('type') == 'float' else 'INT'}{scheme.get('num_bits', 8)}"
    if kind not in ("INT8", "FP8"):
        raise SourceError(f"caches in {kind} are not supported", "quantization_config", "use FP8 or INT8")
    return "int8" if kind == "INT8" else "fp8"
