"""How a language model is served by Dynamo's frontend and workers."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from trtkit.deployment.ports import reachable
from trtkit.serving_options import ServingOptions

if TYPE_CHECKING:
    from pathlib import Path


Router = Literal["kv", "round-robin", "least-loaded", "power-of-two", "random"]


@dataclass(frozen=True)
class DynamoOptions:
    """How to serve a bundle.

    name: the model's in requests. replicas: workers that answer. prefill_workers: more of them, which compute prompts
    for the others. prefill_bundle: another build of the same model that these run, with its own slots and memory; see
    `check_prefill_bundle`. serving: of each worker; `cache_dir` has a folder for each.
    router: how requests are spread over several workers.
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
    serving: ServingOptions = field(default_factory=ServingOptions.for_server)
    router: Router = "kv"
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
