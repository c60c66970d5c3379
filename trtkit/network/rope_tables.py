"""Cosines and sines of rotary embeddings for every scaling method."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from trtkit.models.rope import original_length, yarn_attention_factor

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from trtkit.models.attention import QueryScaling, RelativeSpec, RopeSpec
    from trtkit.models.spec import SinusoidalPositions

Table = np.ndarray[Any, np.dtype[np.float64]]


def rope_tables(rope: RopeSpec, length: int) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Return cosines and sines [length, dim / 2] in fp32 for positions from 0.

    Methods that depend on the sequence's length (dynamic, longrope) use `length`, the longest that the engine serves:
    cached keys cannot be rotated again when a sequence grows.
    """
    frequencies, factor = _METHODS[rope.scaling](rope, length)
    frequencies = -frequencies if rope.is_reversed else frequencies
    angles = np.arange(length, dtype=np.float64)[:, None] * frequencies
    return (np.cos(angles) * factor).astype(np.float32), (np.sin(angles) * factor).astype(np.float32)


def counted_length(rope: RopeSpec, length: int) -> int:
    """Return the maximum length as far as tables depend on it: engines with equal values rotate positions alike."""
    lengths = {"dynamic": max(length, rope.max_position_embeddings), "longrope": int(length > original_length(rope))}
    return lengths.get(rope.scaling, 0)


def section_axes(rope: RopeSpec) -> NDArray[np.int64]:
    """Return the axis whose position rotates each pair, [dim / 2]: 0 for time, 1 for height, 2 for width (M-RoPE)."""
    if not rope.are_sections_interleaved:
        return np.repeat(np.arange(len(rope.sections)) % 3, rope.sections)
    axes = np.zeros(rope.dim // 2, np.int64)
    for axis in (1, 2):
        axes[axis : 3 * rope.sections[axis] : 3] = axis
    return axes


def distance_buckets(relative: RelativeSpec, count: int) -> NDArray[np.int32]:
    """Return the bucket of each distance back from 0: [count]. Each of the first half holds a single distance.

    Source: transformers, `T5Attention._relative_position_bucket`, whose fp32 arithmetic decides at the boundaries.
    """
    distances, exact = np.arange(count), relative.buckets // 2
    growth = np.log(np.maximum(distances, 1).astype(np.float32) / np.float32(exact))
    growth = growth / np.float32(math.log(relative.max_distance / exact)) * np.float32(relative.buckets - exact)
    far = np.minimum(exact + growth.astype(np.int64), relative.buckets - 1)
    return np.where(distances < exact, distances, far).astype(np.int32)


def query_scaling_table(scaling: QueryScaling, count: int) -> NDArray[np.float32]:
    """Return the scaling factors of queries at positions from 0: [count, 1].

    Source: https://arxiv.org/abs/2501.19399; transformers, modeling_llama4.py and modeling_ministral3.py.
    """
    chunks = (np.arange(count)[:, None] + scaling.first) // scaling.length
    return (1 + scaling.beta * np.log1p(chunks)).astype(np.float32)


def _number(rope: RopeSpec, name: str, default: float) -> float:
    value = rope.parameters.get(name, default)
    assert isinstance(value, int | float)
    return float(value)


def _plain(rope: RopeSpec, theta: float | None = None) -> Table:
    """Return theta ** (-2 i / dim). Source: https://arxiv.org/abs/2104.09864."""
    frequencies: Table = (theta or rope.theta) ** (-np.arange(0, rope.dim, 2, dtype=np.float64) / rope.dim)
    return frequencies


def _default(rope: RopeSpec, _length: int) -> tuple[Table, float]:
    return _plain(rope), 1.0


def _linear(rope: RopeSpec, _length: int) -> tuple[Table, float]:
    """Divide all positions by a factor. Source: https://arxiv.org/abs/2306.15595."""
    return _plain(rope) / _number(rope, "factor", 1.0), 1.0


def _dynamic(rope: RopeSpec, length: int) -> tuple[Table, float]:
    """Raise theta for lengths above the model's own (NTK). HF: `_compute_dynamic_ntk_parameters`."""
    factor, limit = _number(rope, "factor", 1.0), rope.max_position_embeddings
    stretch = factor * max(length, limit) / limit - (factor - 1)
    return _plain(rope, rope.theta * stretch ** (rope.dim / (rope.dim - 2))), 1.0


def _llama3(rope: RopeSpec, _length: int) -> tuple[Table, float]:
    """Divide low frequencies by a factor, keep high ones, interpolate between. HF: `_compute_llama3_parameters`."""
    plain = _plain(rope)
    low, high = _number(rope, "low_freq_factor", 1.0), _number(rope, "high_freq_factor", 4.0)
    turns = _number(rope, "original_max_position_embeddings", 8192) * plain / (2 * math.pi)
    kept = np.clip((turns - low) / (high - low), 0, 1)
    return kept * plain + (1 - kept) * plain / _number(rope, "factor", 1.0), 1.0


def _yarn(rope: RopeSpec, _length: int) -> tuple[Table, float]:
    """Interpolate the pairs of low frequency in the original context. Source: https://arxiv.org/abs/2309.00071."""
    factor = _number(rope, "factor", 1.0)
    original = _number(rope, "original_max_position_embeddings", rope.max_position_embeddings)

    def pair_that_turns(times: float) -> float:
        return rope.dim * math.log(original / (times * 2 * math.pi)) / (2 * math.log(rope.theta))

    first = pair_that_turns(_number(rope, "beta_fast", 32.0))
    last = pair_that_turns(_number(rope, "beta_slow", 1.0))
    if _number(rope, "truncate", 1.0):
        first, last = math.floor(first), math.ceil(last)
    first, last = max(first, 0), min(last, rope.dim - 1)
    last = last + 0.001 if first == last else last
    interpolated = np.clip((np.arange(rope.dim // 2) - first) / (last - first), 0, 1)
    plain = _plain(rope)
    return plain * (1 - interpolated) + plain / factor * interpolated, _yarn_factor(rope, factor)


def _yarn_factor(rope: RopeSpec, factor: float) -> float:
    """Return the factor of cosines and sines that scales attention's temperature."""
    mscale, mscale_all_dim = _number(rope, "mscale", 0.0), _number(rope, "mscale_all_dim", 0.0)
    both = (yarn_attention_factor(factor, weight) for weight in (mscale, mscale_all_dim))
    inferred = next(both) / next(both) if mscale and mscale_all_dim else yarn_attention_factor(factor)
    return _number(rope, "attention_factor", inferred)


def _longrope(rope: RopeSpec, length: int) -> tuple[Table, float]:
    """Divide each pair's frequency by a searched factor. Source: https://arxiv.org/abs/2402.13753."""
    original = _number(rope, "original_max_position_embeddings", rope.max_position_embeddings)
    divisors = rope.parameters["long_factor" if length > original else "short_factor"]
    factor = _number(rope, "factor", 1.0)
    inferred = 1.0 if factor <= 1 else math.sqrt(1 + math.log(factor) / math.log(original))
    return _plain(rope) / np.array(divisors, dtype=np.float64), _number(rope, "attention_factor", inferred)


def _proportional(rope: RopeSpec, _length: int) -> tuple[Table, float]:
    """Rotate only the first pairs of the whole head. HF: `_compute_proportional_rope_parameters`."""
    turned = int(_number(rope, "partial_rotary_factor", 1.0) * rope.dim // 2)
    frequencies = _plain(rope) / _number(rope, "factor", 1.0)
    frequencies[turned:] = 0
    return frequencies, 1.0


_METHODS: dict[str, Callable[[RopeSpec, int], tuple[Table, float]]] = {
    "default": _default,
    "linear": _linear,
    "dynamic": _dynamic,
    "llama3": _llama3,
    "yarn": _yarn,
    "longrope": _longrope,
    "proportional": _proportional,
}


def sinusoid_table(positions: SinusoidalPositions, length: int, size: int) -> np.ndarray[Any, Any]:
    """Return vectors [length, size] in fp32 for positions from 0: sines, then cosines; a last odd element is 0."""
    half = size // 2
    frequencies = np.exp(-math.log(10000) / (half - 1) * np.arange(half))
    angles = (np.arange(length) + positions.offset)[:, None] * frequencies
    table = np.zeros((length, size), np.float32)
    table[:, : 2 * half] = np.concatenate([np.sin(angles), np.cos(angles)], axis=1)
    if positions.zero_at is not None and 0 <= positions.zero_at < length:
        table[positions.zero_at] = 0
    return table
