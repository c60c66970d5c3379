"""Test cases for attention over paged caches."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import ml_dtypes
import numpy as np

from trtkit.network.custom_op import Case, Typical

from .op import UNQUANTIZED, PagedAttentionAttributes

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy import ndarray


SCALE = 0.03
"""The scale of quantized keys and values in the cases."""


@dataclass(frozen=True)
class CaseSizes:
    """Sizes of a case. cached, counts: each sequence's cached and new tokens. pages: columns of the page table."""

    heads: tuple[int, int]
    tokens: int
    head_size: int
    page: int
    pages: int
    cached: tuple[int, ...]
    counts: tuple[int, ...]
    has_sinks: bool = False
    quantization: str = UNQUANTIZED


def inputs_of(sizes: CaseSizes) -> Callable[[np.random.Generator], Sequence[ndarray | None]]:
    """Return a function that makes inputs: pages in random order, large numbers in entries that no token attends to."""

    def make(generator: np.random.Generator) -> Sequence[ndarray | None]:
        batch, (heads, shared), page = len(sizes.cached), sizes.heads, sizes.page
        q = generator.standard_normal((batch, heads, sizes.tokens, sizes.head_size)) * sizes.head_size**-0.5
        order = generator.permutation(batch * sizes.pages + 1)
        table = order[1:].reshape(batch, sizes.pages)
        held = []
        for _ in range(2):
            pool = np.full((len(order), shared, page, sizes.head_size), 100.0)
            new = np.full((batch, shared, sizes.tokens, sizes.head_size), -100.0)
            for row, (cached, count) in enumerate(zip(sizes.cached, sizes.counts, strict=True)):
                for at in range(cached):
                    pool[table[row, at // page], :, at % page] = generator.standard_normal((shared, sizes.head_size))
                new[row, :, :count] = generator.standard_normal((shared, count, sizes.head_size))
            held.append((pool, new))
        sinks = generator.standard_normal(heads) if sizes.has_sinks else None
        codes = [_coded(x, sizes.quantization) for x in (held[0][0], held[1][0], held[0][1], held[1][1])]
        rows = [np.array(x, np.int32) for x in (table, sizes.cached, sizes.counts)]
        return [q.astype(np.float32), *codes, *rows, None if sinks is None else sinks.astype(np.float32)]

    return make


def _coded(x: ndarray, quantization: str) -> ndarray:
    """Return `x`, or its codes with the scale `SCALE`: rounded and saturated."""
    if quantization == UNQUANTIZED:
        return x.astype(np.float32)
    if quantization == "int8":
        return np.clip(np.rint(x / SCALE), -128, 127).astype(np.int8)
    return np.clip(x / SCALE, -448, 448).astype(ml_dtypes.float8_e4m3fn)


def _case(name: str, sizes: CaseSizes, attributes: PagedAttentionAttributes, dynamic: tuple[str, ...] = ()) -> Case:
    return Case(name, attributes, inputs_of(sizes), dynamic)


_ALL = ("B", "S", "P", "n")
CASES = (
    _case(
        "one token each, groups of three, dynamic sizes",
        CaseSizes((6, 2), 1, 40, 16, 4, (37, 0, 16), (1, 1, 1)),
        PagedAttentionAttributes(),
        _ALL,
    ),
    _case(
        "several tokens, some padding, a window smaller than a page, dynamic sizes",
        CaseSizes((4, 1), 9, 8, 16, 3, (21, 0, 40, 5), (9, 3, 0, 8)),
        PagedAttentionAttributes(window=7),
        _ALL,
    ),
    _case(
        "capped scores, one query head each, pages of seven",
        CaseSizes((2, 2), 5, 24, 7, 12, (80, 3), (5, 2)),
        PagedAttentionAttributes(softcap=1.5),
        ("S",),
    ),
    _case(
        "pages of 128, 37 query heads of one group, a window over pages, sinks",
        CaseSizes((37, 1), 1, 16, 128, 2, (140,), (1,), has_sinks=True),
        PagedAttentionAttributes(window=100),
    ),
    _case(
        "keys and values in int8, several tokens, sinks, dynamic sizes",
        CaseSizes((4, 2), 3, 20, 16, 3, (33, 0, 9), (3, 2, 0), has_sinks=True, quantization="int8"),
        PagedAttentionAttributes(quantization="int8", key_scale=SCALE, value_scale=SCALE),
        _ALL,
    ),
    _case(
        "keys and values in fp8, a window, capped scores",
        CaseSizes((6, 2), 2, 24, 7, 5, (30, 11), (2, 1), quantization="fp8"),
        PagedAttentionAttributes(9, 2.0, "fp8", key_scale=SCALE, value_scale=SCALE),
    ),
)

_POOL, _NEW = (8192, 8, 16, 64), (16, 8, 1, 64)
_SHAPES = ((16, 32, 1, 64), _POOL, _POOL, _NEW, _NEW, (16, 512), (16,), (16,), (32,))
_MODEL = "Llama 3.2 1B, 16 sequences, one token each"
TYPICAL = Typical(_MODEL, PagedAttentionAttributes(), _SHAPES)
OTHER_TYPICALS = (
    *(
        Typical(f"{_MODEL}, caches in {code}", PagedAttentionAttributes(0, 0.0, code, SCALE, SCALE), _SHAPES)
        for code in ("int8", "fp8")
    ),
    Typical(f"{_MODEL}, keys in 8 parts", PagedAttentionAttributes(parts=8), _SHAPES),
)
"""Other settings that the kernel is compiled for."""
LARGE = _case(
    "8 sequences of about 1000 tokens in pages of 16",
    CaseSizes((8, 2), 1, 64, 16, 64, (1000, 1023, 980, 1001, 7, 512, 640, 900), (1,) * 8),
    PagedAttentionAttributes(),
)
