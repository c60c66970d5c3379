"""Sizes of paged caches, from a network's inputs."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from trtkit.dtypes import DTYPES
from trtkit.models.share import WHOLE

if TYPE_CHECKING:
    from collections.abc import Iterable

    from trtkit.models.share import Share
    from trtkit.network.input_spec import InputSpec


def page_tokens_of(specs: Iterable[InputSpec], context: Share = WHOLE) -> int | None:
    """Return how many tokens a page of a network's caches holds; None if the caches are linear.

    context: the share of positions of the network's rank, which is the part of a page that the network sees.
    """
    pools = (spec for spec in specs if spec.axes and spec.axes[0].role == "pages")
    return next((spec.size_of("page_tokens") * context.count for spec in pools), None)


def copies_pages(specs: Iterable[InputSpec]) -> bool:
    """Whether a network's attention reads copies of pages, for all rows as many as the longest row has.

    Otherwise it reads each row's own pages in place; see `DecoderOptions.has_pages_in_place`.
    """
    return any(axis.role == "kv_window" for spec in specs for axis in spec.axes)


def bytes_of_page(specs: Iterable[InputSpec]) -> int:
    """Return the bytes of a page in the pools of all layers."""
    pools = [spec for spec in specs if spec.axes and spec.axes[0].role == "pages"]
    return sum(math.prod(spec.shape[1:]) * DTYPES[spec.dtype].bits // 8 for spec in pools)


def with_speculator(specs: Iterable[InputSpec], others: Iterable[InputSpec]) -> list[InputSpec]:
    """Return a network's inputs and the caches among `others`, its draft head's inputs, each cache once."""
    specs = list(specs)
    names = {spec.name for spec in specs}
    return [*specs, *(spec for spec in others if spec.is_kept and spec.name not in names)]
