"""How a language model is served by Dynamo's frontend and workers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from trtkit.deployment.ports import reachable

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from trtkit.runtime.scheduling import ScheduleName
    from trtkit.runtime.weight_budget import WeightBudget

Router = Literal["kv", "round-robin", "least-loaded", "power-of-two", "random"]


@dataclass(frozen=True)
class FleetOptions:
    """How to serve a bundle.

    name: the model's in requests. replicas: workers that answer. prefill_workers: more of them, which compute prompts
    for the others. prefill_bundle: another build of the same model that these run, with its own slots and memory; see
    `check_prefill_bundle`. slots: sequences that a worker decodes at once; the engine's number if None.
    cache_gib: memory for paged caches on each GPU. host_cache_gib: each worker's host memory for what they cannot hold.
    weight_budget_gib: memory for weights on each GPU; for all of them if None, what else is left free with "auto".
    speculate: tokens that the bundle's own head guesses, 0 for none; 3 if None and it has one.
    cache_dir: folder in which each worker has one that keeps all of this too, up to `cache_dir_gib`.
    max_queue: requests that wait for a slot at each worker. schedule: which of them is next. shares: weights of users,
    by name; None if users do not matter. router: how requests are spread over several workers.
    lora: folders of LoRA adapters, by the names that they have as models.
    migrations: how often a request may go on at another worker when its own dies. body_mib: largest request.
    hang_timeout_s: how long a step of a worker may take before the worker is started again.
    exit_timeout_s: how long requests may take to end when the fleet stops.
    """

    name: str
    host: str = "127.0.0.1"
    port: int = 8000
    replicas: int = 1
    prefill_workers: int = 0
    prefill_bundle: Path | None = None
    slots: int | None = None
    cache_gib: float | None = None
    host_cache_gib: float = 2.0
    weight_budget_gib: WeightBudget | None = None
    speculate: int | None = None
    cache_dir: Path | None = None
    cache_dir_gib: float = 16.0
    max_queue: int = 512
    schedule: ScheduleName = "priority"
    shares: Mapping[str, float] | None = None
    router: Router = "kv"
    lora: Mapping[str, str] | None = None
    migrations: int = 3
    body_mib: int | None = None
    tool_call_parser: str | None = None
    reasoning_parser: str | None = None
    hang_timeout_s: int = 120
    exit_timeout_s: int = 10

    @property
    def url(self) -> str:
        """The base URL for clients of OpenAI's API, as this machine reaches it."""
        return f"http://{reachable(self.host)}:{self.port}/v1"
