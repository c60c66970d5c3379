"""Attention over paged KV caches as a TensorRT plugin."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from trtkit.dtypes import FP32
from trtkit.network.foreign import Fact, Refusal
from trtkit.network.plugin import Plugin

from .op import UNQUANTIZED

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy import ndarray

    from .op import PagedAttentionAttributes

# Larger heads need more than 48 KiB of shared memory per program, which CUDA grants only on request.
_LARGEST_FP32, _LARGEST_16_BITS = 64, 256


def _limits(facts: Sequence[Fact], attributes: PagedAttentionAttributes) -> None:  # noqa: ARG001
    """Raise Refusal for heads that are too large for the kernel."""
    q = facts[0]
    largest = _LARGEST_FP32 if q.dtype == FP32 else _LARGEST_16_BITS
    if q.shape[3] > largest:
        raise Refusal(f"heads of {q.shape[3]} in {q.dtype}, its plugin takes up to {largest}")


def _types(attributes: PagedAttentionAttributes) -> tuple[str, ...]:
    """Return the types of the inputs and the output; those of keys and values depend on the quantization."""
    cached = _DATA if attributes.quantization == UNQUANTIZED else attributes.quantization.upper()
    return (_DATA, *(cached,) * 4, *("INT32",) * 3, _DATA, _DATA if attributes.parts == 1 else "FP32")


def _shapes(shapes: Sequence[Sequence[Any]], attributes: PagedAttentionAttributes) -> list[list[Any]]:
    """Return the output's shape."""
    from .kernel import output_shape

    return [output_shape(shapes[0], attributes)]


def _no_sinks(facts: Sequence[Fact]) -> ndarray:
    """Return sinks [N] without any share of the softmax."""
    return np.full(facts[0].shape[1], -np.inf, np.float32)


_DATA = "FP32|FP16|BF16"
PLUGIN = Plugin(
    inputs=("q", "key_pool", "value_pool", "new_key", "new_value", "page_table", "cached_lengths", "counts", "sinks"),
    types=_types,
    data=0,
    shapes=_shapes,
    limits=_limits,
    defaults=(_no_sinks,),
)
