"""The planning job and its request."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from trtkit.config.schema import ModelConfig
from trtkit.jobs.job import Job
from trtkit.planning.counts import NetworkCounts
from trtkit.quantized_model import QuantizedModel


@dataclass(frozen=True)
class CountRequest:
    """A language model to count.

    fields: of the model's config.json, located at `where`. length: tokens per slot. quantized: its low-precision layers
    and caches. by_layer: whether groups are layers by their place in a block, rather than kinds of layers.
    """

    backend: str
    config: ModelConfig
    fields: dict[str, Any]
    where: str
    length: int
    quantized: QuantizedModel | None = None
    by_layer: bool = False


COUNT_DECODER = Job("trtkit.planning.count_decoder:count_decoder", CountRequest, NetworkCounts)
