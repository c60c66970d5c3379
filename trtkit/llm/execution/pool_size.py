"""Sizes of caches: slots, or pages of pools."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from trtkit.llm.execution.kv_cache import KvCache
    from trtkit.network.input_spec import InputSpec


@dataclass(frozen=True)
class PoolSize:
    """Number of pages of paged caches; None for as much memory as linear ones would take.

    weight_bytes: of the network that reads them; every call reads these, too, however few rows it has. speculator:
    inputs of the draft head, whose caches share the model's slots and pages. model: for a draft head, the model's
    caches.
    """

    pages: int | None = None
    weight_bytes: int = 0
    speculator: tuple[InputSpec, ...] = ()
    model: KvCache | None = None


AS_LINEAR = PoolSize()


@dataclass(frozen=True)
class CacheSize:
    """Size of a decoder's caches."""

    slots: int
    pool: PoolSize = AS_LINEAR
