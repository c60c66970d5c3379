"""Rotary embeddings of a GGUF file, as Hugging Face's `rope_parameters`."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from trtkit.errors import SourceError
from trtkit.sources.gguf.metadata import head_dim

if TYPE_CHECKING:
    from trtkit.arrays import Array
    from trtkit.sources.gguf.file import GgufFile
    from trtkit.sources.gguf.layout import GgufFamily
    from trtkit.sources.gguf.metadata import Fields, Metadata

# Llama 3's constants, and Llama 4's: llama.cpp's converter supports no other length.
_LENGTH = 8192
_LLAMA3 = {"low_freq_factor": 1.0, "high_freq_factor": 4.0}
_LLAMA4 = {"low_freq_factor": 1.0, "high_freq_factor": 1.0}


def rope_parameters(file: GgufFile, keys: Metadata, family: GgufFamily) -> Fields:
    """Return `rope_parameters`, by layer type if sliding-window layers have their own.

    Raises SourceError for unknown scaling.
    """
    width = int(keys.need("rope.dimension_count")) if family.heads == "latent" else head_dim(keys)
    rotated = int(keys.get("rope.dimension_count", width))
    parameters: Fields = {"rope_theta": float(keys.get("rope.freq_base", 10000.0)), "rope_type": "default"}
    parameters |= _scaling(file, keys, parameters["rope_theta"], rotated)
    if parameters["rope_type"] == "yarn":
        parameters |= {**family.yarn, **_yarn_weights(keys, family)}
    if family.grows:
        parameters["llama_4_scaling_beta"] = float(keys.need("attention.temperature_scale"))
    if family.is_rope_partial:
        parameters["partial_rotary_factor"] = share(rotated, width)
    elif rotated != width:
        raise SourceError(f"only {rotated} of {width} elements of each head are rotated", keys.where)
    if not family.has_two_ropes:
        return parameters
    theta = family.near_theta or parameters["rope_theta"]
    near = {"rope_theta": float(keys.get("rope.freq_base_swa", theta)), "rope_type": "default"}
    return {"full_attention": parameters, "sliding_attention": near}


def share(count: int, whole: int) -> float:
    """Return count / whole, rounded up so that multiplying by `whole` and truncating returns `count`."""
    exact = count / whole
    return exact if int(exact * whole) >= count else math.nextafter(exact, 2.0)


def _scaling(file: GgufFile, keys: Metadata, theta: float, rotated: int) -> Fields:
    kind, factor = str(keys.get("rope.scaling.type", "none")), float(keys.get("rope.scaling.factor", 1.0))
    original = keys.get("rope.scaling.original_context_length")
    if "rope_factors_long.weight" in file.tensors:
        return _longrope(file, keys, original)
    if "rope_freqs.weight" in file.tensors:
        return _llama3(file.stored("rope_freqs.weight").read(), theta, rotated, keys.where)
    if kind == "none" or (kind == "linear" and factor in (0.0, 1.0)):
        return {}
    if kind == "linear":
        return {"rope_type": "linear", "factor": factor}
    if kind == "yarn":
        return {"factor": factor, "original_max_position_embeddings": original, **_yarn(keys)}
    raise SourceError(f"rope scaling `{kind}` is not supported; linear, yarn, longrope and llama3 are", keys.where)


def _yarn(keys: Metadata) -> Fields:
    """Return YaRN's optional numbers."""
    names = {"yarn_attn_factor": "attention_factor", "yarn_beta_fast": "beta_fast", "yarn_beta_slow": "beta_slow"}
    numbers = {field: keys.get(f"rope.scaling.{key}") for key, field in names.items()}
    return {"rope_type": "yarn", **{field: value for field, value in numbers.items() if value is not None}}


def _yarn_weights(keys: Metadata, family: GgufFamily) -> Fields:
    """Return the weights of YaRN's scaling of queries and keys, if the family defines how the file stores them."""
    stated = keys.get("rope.scaling.yarn_log_multiplier") if family.yarn_weight != "none" else None
    if not stated:
        return {}
    weight = round(float(stated) * (10 if family.yarn_weight == "tenth" else 1), 6)
    return {"mscale": weight if family.yarn_weight == "tenth" else 1.0, "mscale_all_dim": weight}


def _longrope(file: GgufFile, keys: Metadata, original: int | None) -> Fields:
    """Return Phi 3's factors; the attention factor only if it differs from the one implied by the lengths."""
    limit = int(keys.need("context_length"))
    original = int(original or limit)
    parameters: Fields = {
        "rope_type": "longrope",
        "short_factor": file.stored("rope_factors_short.weight").read().astype(float).tolist(),
        "long_factor": file.stored("rope_factors_long.weight").read().astype(float).tolist(),
        "original_max_position_embeddings": original,
    }
    scale = limit / original
    implied = math.sqrt(1 + math.log(scale) / math.log(original)) if scale > 1 else 1.0
    stated = keys.get("rope.scaling.attn_factor")
    if stated is not None and not math.isclose(stated, implied, rel_tol=1e-5):
        parameters["attention_factor"] = float(stated)
    return parameters


def _llama3(divisors: Array, theta: float, rotated: int, where: str) -> Fields:
    """Return Llama 3's scaling, of which the file stores the divisors of all frequencies [rotated / 2].

    Raises SourceError if neither Llama 3's constants nor Llama 4's yield these divisors.
    """
    factor = float(divisors.max())
    turns = _LENGTH / (2 * np.pi * theta ** (np.arange(0, rotated, 2) / rotated))
    for constants in (_LLAMA3, _LLAMA4):
        low, high = constants.values()
        smooth = np.clip((turns - low) / (high - low), 0, 1) if high > low else (turns >= high).astype(float)
        expected = 1 / ((1 - smooth) / factor + smooth)
        if divisors.shape == expected.shape and np.allclose(divisors, expected, rtol=1e-4):
            fields = {**constants, "original_max_position_embeddings": _LENGTH}
            return {"rope_type": "llama3", "factor": factor, **fields}
    fix = "build from the model's Hugging Face folder"
    raise SourceError("`rope_freqs.weight` holds frequencies that are not Llama 3's", where, fix)
