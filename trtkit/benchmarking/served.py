"""A bundle served by Triton: the same work over gRPC or HTTP, timed at the client."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import numpy as np

from trtkit.benchmarking.load import RequestOutcome, WallClock, drive
from trtkit.benchmarking.text_server import Served
from trtkit.errors import BenchError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from trtkit.arrays import Array
    from trtkit.benchmarking.load import LoadClock
    from trtkit.benchmarking.schedules import Schedule
    from trtkit.benchmarking.workload import Work
    from trtkit.runtime.triton_client import Client

MOST_UNDER_WAY = 256
"""Maximum concurrent requests of an open loop; later ones wait, and their latency includes the wait."""


class Endpoint:
    """A model on a server, with one connection per sending thread.

    Raises BenchError if the server does not serve the model, DeployError if no server answers.
    """

    def __init__(self, url: str, model: str, timeout_s: float = 600.0) -> None:
        from trtkit.runtime.triton_client import Client, parse_url

        self._address, self._connect, self._timeout_s = parse_url(url), Client, timeout_s
        self._own = threading.local()
        self.url, self.model = str(self._address), model
        self.computes = f"Triton {self._version()} at {self.url}, model {model}"

    @property
    def client(self) -> Client:
        """Return this thread's connection."""
        if not hasattr(self._own, "client"):
            self._own.client = self._connect(self._address, self._timeout_s)
        client: Client = self._own.client
        return client

    def infer(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """Return the outputs of one request. Raises DeployError if the server refuses."""
        return self.client.infer(self.model, inputs, self._outputs)

    def check_inputs(self, names: Sequence[str]) -> None:
        """Refuse a model without a network's inputs. Raises BenchError."""
        served = self.client.interface(self.model)
        if set(names) == {tensor.name for tensor in served.inputs}:
            return
        theirs, ours = (_listed(side) for side in ([tensor.name for tensor in served.inputs], names))
        step = next((name for name in served.steps if name.endswith("_engine")), "NAME")
        around = ": it is an ensemble around the network" if served.steps else ""
        fix = f"give the network's model: --model {step}"
        raise BenchError(f"`{self.model}` takes {theirs}, and the network {ours}{around}", self.url, fix)

    def _version(self) -> str:
        version = self.client.version()
        if not self.client.has_ready(self.model):
            fix = "give the model's name in the repository: --model NAME"
            raise BenchError(f"the server has no ready model `{self.model}`", self.url, fix)
        self._outputs = [tensor.name for tensor in self.client.interface(self.model).outputs]
        return version


class ServedText:
    """A language model as `trtkit deploy` serves it. A token's time is when its response arrives."""

    name = "served"
    device: str | None = None

    def __init__(self, endpoint: Endpoint, clock: LoadClock | None = None) -> None:
        self._endpoint, self._clock = endpoint, clock or WallClock()
        self.computes = endpoint.computes

    def serve(self, work: Sequence[Work], schedule: Schedule) -> Served:
        """Answer all of `work`; each worker has its own connection."""
        tokens: dict[int, tuple[int, ...]] = {}
        records = drive(
            lambda index: self._ask(index, work[index], tokens), *workers_of(schedule, len(work)), self._clock
        )
        return Served(records, [tokens.get(index, ()) for index in range(len(work))])

    def _ask(self, index: int, work: Work, tokens: dict[int, tuple[int, ...]]) -> RequestOutcome:
        """Send one request and record when each of its tokens arrived."""
        ids: list[int] = []
        times: list[float] = []
        for response in self._endpoint.client.responses(self._endpoint.model, _fields(work)):
            new = response["output_ids"].reshape(-1).tolist() if "output_ids" in response else []
            ids += new
            times += [self._clock.now()] * len(new)
        tokens[index] = tuple(ids)
        return RequestOutcome(tuple(times), len(work.prompt_ids))


def workers_of(schedule: Schedule, count: int) -> tuple[Sequence[float] | int, int]:
    """Return the due times of `count` requests, or their number, and the maximum number of concurrent ones."""
    return schedule.due_s or count, schedule.concurrency or min(count, MOST_UNDER_WAY)


def _listed(names: Sequence[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def _fields(work: Work) -> dict[str, Array]:
    """Return a request's inputs: greedy, streamed, exactly `output_tokens` tokens."""
    return {
        "input_ids": np.array([work.prompt_ids], np.int32),
        "max_tokens": np.array([[work.output_tokens]], np.int32),
        "temperature": np.zeros((1, 1), np.float32),
        "ignore_eos": np.ones((1, 1), np.bool_),
        "stream": np.ones((1, 1), np.bool_),
    }
