"""Attention over paged caches as a TensorRT plugin, without sinks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trtkit.dtypes import FP32
from trtkit.network.foreign import Fact, Refusal
from trtkit.network.plugin import Plugin

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .op import PagedAttentionAttributes

# Larger ones need more than 48 KiB of shared memory per program, which CUDA grants on request only.
_LARGEST_FP32, _LARGEST_FP16 = 64, 256


def _limits(facts: Sequence[Fact], attributes: PagedAttentionAttributes) -> None:  # noqa: ARG001
    """Raise Refusal for heads that are too large for the kernel."""
    q = facts[0]
    largest = _LARGEST_FP32 if q.dtype == FP32 else _LARGEST_FP16
    if q.shape[3] > largest:
        raise Refusal(f"heads of {q.shape[3]} in {q.dtype}, its plugin takes up to {largest}")


_DATA = "FP32|FP16"
PLUGIN = Plugin(
    inputs=("q", "key_pool", "value_pool", "new_key", "new_value", "page_table", "cached_lengths", "counts"),
    types=(*(_DATA,) * 5, *("INT32",) * 3, _DATA),
    data=0,
    shapes=lambda shapes, _: [shapes[0]],
    limits=_limits,
)
