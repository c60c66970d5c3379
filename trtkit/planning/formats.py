"""Alternative formats of weights and caches: the counts of the network with the format applied."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from trtkit.planning.counts import Multilinear
from trtkit.quantization_methods import weight_bits

if TYPE_CHECKING:
    from trtkit.dtypes import DType
    from trtkit.planning.counts import GroupCounts, NetworkCounts
    from trtkit.planning.gpus import PlannedGpu

# Groups whose matrices are quantized; embedding, head and norms are not.
QUANTIZED = (
    "q, k, v projections",
    "latent projections",
    "output projection",
    "recurrent layers",
    "mlp",
    "experts",
)


@dataclass(frozen=True)
class Format:
    """Storage format of weights and cache. weight_bits: including scales; None if weights are unchanged.

    compute: type of the products; None for the network's own. needs: types that the GPU must support.
    """

    name: str
    weight_bits: float | None = None
    kv_bits: int | None = None
    compute: str | None = None
    needs: tuple[str, ...] = ()

    def fits(self, gpu: PlannedGpu) -> bool:
        """Whether the GPU supports these types."""
        return all(gpu.takes(dtype) for dtype in self.needs)


FORMATS = (
    Format("as planned"),
    Format("fp8 cache", kv_bits=8, needs=("fp8",)),
    Format("fp8 weights and products", weight_bits("fp8"), compute="fp8", needs=("fp8",)),
    Format("int8 weights and products", weight_bits("int8"), compute="int8", needs=("int8",)),
    Format("int4 weights, 128 a block", weight_bits("int4", 128), needs=("int4",)),
    Format("fp4 weights and products, 16 a block", weight_bits("fp4"), compute="fp4", needs=("fp4",)),
    Format("int4 weights, fp8 cache", weight_bits("int4", 128), 8, needs=("int4", "fp8")),
)


def quantized_bytes(counts: NetworkCounts, dtype: DType, bits: float | None) -> int:
    """Return the bytes saved by quantizing matrices."""
    matrices = sum(group.weight_bytes for group in counts.groups if group.name in QUANTIZED)
    return 0 if bits is None else matrices - round(matrices * bits / dtype.bits)


def in_format(counts: NetworkCounts, dtype: DType, form: Format) -> NetworkCounts:
    """Return the counts with weights and cache in another format. dtype: the network's own."""
    saved = quantized_bytes(counts, dtype, form.weight_bits)
    kept = 1.0 if form.kv_bits is None else form.kv_bits / dtype.bits
    cache = _scaled(counts.cache_bytes, kept)
    rest = tuple(
        all_ - part - (saved if index == 0 else 0)
        for index, (all_, part) in enumerate(
            zip(counts.fused_bytes.coefficients, counts.cache_bytes.coefficients, strict=True)
        )
    )
    groups = tuple(_group(group, dtype, form) for group in counts.groups)
    mixture = counts.mixture if form.weight_bits is None else None  # quantized experts are all read
    active = counts.active if form.weight_bits is None else None  # rows of quantized matrices are not gathered
    changed = replace(counts, groups=groups, fused_bytes=Multilinear(rest) + cache, cache_bytes=cache, mixture=mixture)
    changed = replace(changed, active=active)
    copied, largest = (_scaled(poly, kept) for poly in (counts.copied_bytes, counts.largest_copy))
    return replace(changed, copied_bytes=copied, largest_copy=largest)


def _group(group: GroupCounts, dtype: DType, form: Format) -> GroupCounts:
    """Return a group's counts in another format."""
    if group.name in QUANTIZED and form.weight_bits is not None:
        saved = group.weight_bytes - round(group.weight_bytes * form.weight_bits / dtype.bits)
        first, *rest = group.bytes.coefficients
        products = {form.compute or name: poly for name, poly in group.products.items()}
        moved = Multilinear((first - saved, *rest))
        return replace(group, bytes=moved, weight_bytes=group.weight_bytes - saved, products=products)
    return group


def _scaled(poly: Multilinear, factor: float) -> Multilinear:
    return Multilinear(tuple(round(factor * coefficient) for coefficient in poly.coefficients))
