"""A real Dynamo for tests: a frontend and its workers on free ports, and clients for them."""

from __future__ import annotations

import contextlib
import json
import re
import time
import urllib.error
import urllib.request
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from openai import OpenAI

from trtkit.deployment.dynamo.fleet import LocalFleet
from trtkit.deployment.dynamo.model_folder import read_model
from trtkit.deployment.dynamo.options import DynamoOptions
from trtkit.deployment.process import free_ports_below
from trtkit.serving_options import ServingOptions, serving_fields

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

MODEL = "chat"
TIMEOUT_S = 120.0
OK = '{"status":"ok"}'


@dataclass(frozen=True)
class Served:
    """A running fleet, and the output of its processes."""

    fleet: LocalFleet
    log: list[str]

    def client(self) -> OpenAI:
        """Return a client without retries."""
        return OpenAI(base_url=self.fleet.options.url, api_key="none", timeout=TIMEOUT_S, max_retries=0)

    def metric(self, name: str) -> float:
        """Return the sum over all workers of `trtkit_<name>`."""
        return sum(self._metric(number, name) for number in range(len(self.fleet.workers)))

    def busy_slots(self, number: int) -> int:
        """Return how many slots of a worker are in use."""
        return int(self._metric(number, "slots_busy"))

    def known_workers(self) -> int:
        """Return how many workers the frontend knows."""
        root = self.fleet.options.url.removesuffix("/v1")
        with urllib.request.urlopen(f"{root}/health", timeout=TIMEOUT_S) as answer:
            return sum(each["endpoint"] == "generate" for each in json.load(answer)["instances"])

    def update(self, number: int, name: str, **body: object) -> str:
        """Send an authorized update to a worker's own port; return its answer."""
        return self.ask_worker(number, f"engine/update/{name}", {"token": self.fleet.admin_token, **body})[1]

    def ask_worker(self, number: int, path: str, body: object = None, **headers: str) -> tuple[int, str]:
        """Request a path on a worker's own port, by POST if there is a body; return status and text."""
        address = f"http://127.0.0.1:{self.fleet.workers[number].health_port}/{path}"
        data = None if body is None else json.dumps(body).encode()
        return ask(urllib.request.Request(address, data, {"Content-Type": "application/json", **headers}))

    def _metric(self, number: int, name: str) -> float:
        port = self.fleet.workers[number].health_port
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=TIMEOUT_S) as answer:
            text = answer.read().decode()
        (value,) = re.findall(rf"^trtkit_{name}(?:{{[^}}]*}})? (\S+)$", text, re.MULTILINE)
        return float(value)


def ask(request: urllib.request.Request) -> tuple[int, str]:
    """Return the status and text of a server's answer."""
    try:
        with urllib.request.urlopen(request, timeout=TIMEOUT_S) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


@contextlib.contextmanager
def serving(bundle: Path, *more: Path, **options: Any) -> Iterator[Served]:
    """Serve a bundle as MODEL, and others by their folders' names, until the block ends."""
    log: list[str] = []
    names = serving_fields("serve").keys() & options.keys()
    worker = ServingOptions.for_server(**{name: options.pop(name) for name in names})
    first = {name: options.pop(name) for name in ("tool_call_parser", "reasoning_parser") if name in options}
    port = free_ports_below(30_000, 1)[0]
    fleet_options = DynamoOptions(port=port, exit_timeout_s=5, serving=worker, **options)
    models = [replace(read_model(bundle, MODEL), **first), *map(read_model, more)]
    with LocalFleet(models, fleet_options, lambda name, line: log.append(f"{name}: {line}")) as fleet:
        fleet.wait_ready()
        yield Served(fleet, log)


def wait_until(is_done: Callable[[], bool]) -> None:
    """Wait until a condition holds; fail after a timeout."""
    end = time.monotonic() + TIMEOUT_S
    while not is_done():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.1)
