"""Options of a fleet that serves language models with Dynamo, and the command line of each worker."""

import argparse
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from trtkit.deployment.process import reachable
from trtkit.serving_options import ServingOptions

Router = Literal["kv", "round-robin", "least-loaded", "power-of-two", "random"]


@dataclass(frozen=True)
class DynamoOptions:
    """How to serve bundles.

    replicas: answering workers per model. prefill_workers: additional workers that compute prompts for the others.
    prefill_bundle: another build of the same model for these, with its own slots and memory; see
    `check_prefill_bundle`. serving: options of each worker; `cache_dir` gets one folder per worker. router: how
    requests are distributed over several workers. migrations: how often a request may move to another worker when its
    own dies. body_mib: size of the largest request. api_key: key that clients must send, if any. hang_timeout_s:
    duration of a worker's step after which the worker is restarted. exit_timeout_s: time that running requests get when
    the fleet stops.
    """

    host: str = "127.0.0.1"
    port: int = 8000
    replicas: int = 1
    prefill_workers: int = 0
    prefill_bundle: Path | None = None
    serving: ServingOptions = field(default_factory=ServingOptions.for_server)
    router: Router = "kv"
    migrations: int = 3
    body_mib: int | None = None
    api_key: str | None = field(default=None, repr=False)
    hang_timeout_s: int = 120
    exit_timeout_s: int = 10

    @property
    def url(self) -> str:
        """The base URL for clients of the OpenAI API, as this machine reaches it."""
        return f"http://{reachable(self.host)}:{self.port}/v1"


MODULE = "trtkit.deployment.dynamo.worker"
BLOCK_SIZE = 16
"""Tokens per block, the unit in which the router tracks a worker's cache."""
ADMIN_TOKEN = "TRTKIT_ADMIN_TOKEN"
"""Environment variable with the secret that a request to a worker's own port must carry to change the worker."""
SLEEP, WAKE_UP = "sleep", "wake_up"
"""Worker updates that free its GPU memory and load the model again."""
SILENT = "trtkit_engine_silent_seconds"
ASLEEP = "trtkit_asleep"
"""A worker's metric: duration of its engine's current step so far. It lets a fleet detect a hung engine."""


def worker_parser() -> argparse.ArgumentParser:
    """Return the parser of `python -m trtkit.deployment.dynamo.worker`."""
    parser = argparse.ArgumentParser(f"python -m {MODULE}", description="Serve a bundle as a worker of NVIDIA Dynamo.")
    parser.add_argument("bundle", type=Path)
    parser.add_argument("--name", help="the model's name in requests; the folder's by default")
    parser.add_argument("--namespace", default="dynamo")
    text = "how the bundle is served: a JSON object of ServingOptions"
    parser.add_argument("--options", dest="serving", type=ServingOptions.from_json, help=text, metavar="JSON")
    parser.set_defaults(serving=ServingOptions.for_server())
    parser.add_argument("--endpoint-types", default="chat,completions")
    parser.add_argument("--discovery", default="file", choices=("file", "kubernetes", "etcd", "mem"))
    parser.add_argument("--tool-call-parser")
    parser.add_argument("--reasoning-parser")
    parser.add_argument("--role", default="agg", choices=("agg", "prefill", "decode"), help="agg: prompts and answers")
    parser.add_argument("--lent-mib", type=int, default=1024, help="prefill: memory for caches that are to be read")
    parser.add_argument("--lent-s", type=float, default=60, help="prefill: how long each is kept")
    parser.add_argument("--transfer-s", type=float, default=10, help="decode: how long one may take to arrive")
    parser.add_argument("--no-kv-routing", dest="has_kv_routing", action="store_false")
    return parser
