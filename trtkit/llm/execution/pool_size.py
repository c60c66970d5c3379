"""How much memory caches take: slots, or pages of pools."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from trtkit.llm.execution.kv_cache import KvCache
    from trtkit.network.input_spec import InputSpec


@dataclass(frozen=True)
class PoolSize:
    """How many pages paged caches have, as many as linear ones would take if None.

    weight_bytes: of the network that reads them, which a call reads too, however few rows it has.
    speculator: inputs of the draft head, whose caches lie next to the model's, in its slots and pages. model:
    the caches that a draft head's lie alongside, if these are one's.
    """

    pages: int | None = None
    weight_bytes: int = 0
    speculator: tuple[InputSpec, ...] = ()
    model: KvCache | None = None


AS_LINEAR = PoolSize()


@dataclass(frozen=True)
class CacheSize:
    """How much caches hold."""

    slots: int
    pool: PoolSize = AS_LINEAR
