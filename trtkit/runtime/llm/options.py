"""How to open a bundle of a language model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from trtkit.runtime.decoder import Runtime
    from trtkit.runtime.scheduling import ScheduleName, ScheduleOptions
    from trtkit.runtime.weight_budget import WeightBudget


@dataclass(frozen=True, kw_only=True)
class RuntimeOptions:
    """How to open a bundle.

    runtime: "tensorrt", "reference", or "auto" for TensorRT if a GPU is present. slots: concurrent sequences; the
    engine's number if None. cache_gib: memory for paged caches on each GPU; as much as full slots would take if None.
    host_cache_gib: host memory for what the caches have no room for; 0: none. cache_dir: folder where all of that is
    written too, up to `cache_dir_gib`, and found by the next process.
    weight_budget_gib: GPU memory for an engine's weights, of which the others stay in host memory; all if None,
    and with "auto" as many as everything else leaves room for.
    prefill_budget: new tokens per step. schedule: which request runs next, by name or with its options.
    max_queue: maximum requests that wait for a slot.
    speculate: number of tokens that the bundle's own head guesses, if it has one; 0 for none.
    lookup: number of tokens to guess from earlier text. draft: bundle of a smaller model that guesses `draft_tokens`.
    has_cuda_graphs: whether to capture and replay an engine's decode steps.
    detokenizes: whether answers have text; without, stop strings cannot end them.
    needs_all_logits: run on the reference executor if the engine returns only the last token's logits.
    lora: folders of LoRA adapters by the names that requests use.
    """

    runtime: Runtime = "auto"
    slots: int | None = None
    cache_gib: float | None = None
    host_cache_gib: float = 2.0
    weight_budget_gib: WeightBudget | None = None
    cache_dir: str | Path | None = None
    cache_dir_gib: float = 16.0
    prefill_budget: int | None = None
    schedule: ScheduleName | ScheduleOptions = "priority"
    max_queue: int | None = None
    min_shared_tokens: int = 16
    speculate: int | None = None
    lookup: int = 0
    draft: str | Path | None = None
    draft_tokens: int = 4
    has_cuda_graphs: bool = True
    detokenizes: bool = True
    needs_all_logits: bool = False
    lora: Mapping[str, str | Path] | None = None
