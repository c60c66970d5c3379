"""A bundle behind a Triton server: the same work over gRPC, timed where the answers arrive."""

from __future__ import annotations

import queue
import threading
from typing import TYPE_CHECKING, Any

import numpy as np

from trtkit.bench.load import Answer, WallClock, drive
from trtkit.bench.text_server import Served
from trtkit.errors import BenchError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from trtkit.bench.load import Clock
    from trtkit.bench.schedules import Schedule
    from trtkit.bench.workload import Work

Array = np.ndarray[Any, Any]
_FORM = "use grpc://HOST:PORT, such as grpc://localhost:8001"
MOST_UNDER_WAY = 256
"""Requests of an open loop that may be under way; those behind wait, and their latency counts the wait."""


class Endpoint:
    """A model on a server. Raises BenchError where no server answers there or it does not serve the model."""

    def __init__(self, url: str, model: str, timeout_s: float = 600.0) -> None:
        scheme, _, target = url.partition("://")
        if scheme != "grpc" or ":" not in target:
            raise BenchError(f"`{url}` is no address of a gRPC endpoint", "--url", _FORM)
        self.url, self.model, self.timeout_s, self._target = url, model, timeout_s, target.rstrip("/")
        self.client = self.connect()
        self.computes = f"Triton {self._version()} at {url}, model {model}"

    def connect(self) -> Any:
        """Return a new connection: a client has one stream."""
        try:
            import tritonclient.grpc as triton
        except ImportError as error:
            raise BenchError(f"--url needs tritonclient: {error}", fix="pip install 'trtkit[triton]'") from None
        return triton.InferenceServerClient(self._target)

    def infer(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """Return the outputs of one request. Raises BenchError where the server refuses."""
        try:
            found = self.client.infer(self.model, tensors(inputs), client_timeout=self.timeout_s)
        except Exception as error:
            raise self.refusal(error) from None
        return {output.name: found.as_numpy(output.name) for output in found.get_response().outputs}

    def refusal(self, error: Exception) -> BenchError:
        """Return the server's own words as an error; what is no answer of the server's is raised as it is."""
        from tritonclient.utils import InferenceServerException

        if not isinstance(error, InferenceServerException):
            raise error
        return BenchError(f"the server refuses: {error.message()}", f"{self.url} {self.model}")

    def _version(self) -> str:
        try:
            version = self.client.get_server_metadata(client_timeout=20).version
            is_ready = self.client.is_model_ready(self.model, client_timeout=20)
        except Exception as error:
            what = f"no Triton server answers: {error}"
            raise BenchError(what, self.url, "start it with `trtkit serve`; gRPC is usually at port 8001") from None
        if not is_ready:
            fix = "name the model as its repository does: --model NAME"
            raise BenchError(f"the server has no model `{self.model}` that is ready", self.url, fix)
        return str(version)


class ServedText:
    """A language model as `trtkit deploy` serves it. A token's time is when its response has arrived."""

    name = "served"

    def __init__(self, endpoint: Endpoint, clock: Clock | None = None) -> None:
        self._endpoint, self._clock = endpoint, clock or WallClock()
        self._own = threading.local()
        self.computes = endpoint.computes

    def serve(self, work: Sequence[Work], schedule: Schedule) -> Served:
        """Answer all of `work`; each worker has a connection of its own."""
        tokens: dict[int, tuple[int, ...]] = {}
        workers = schedule.concurrency or min(len(work), MOST_UNDER_WAY)
        due: Sequence[float] | int = schedule.due_s or len(work)
        records = drive(lambda index: self._ask(index, work[index], tokens), due, workers, self._clock)
        return Served(records, [tokens.get(index, ()) for index in range(len(work))])

    def _ask(self, index: int, work: Work, tokens: dict[int, tuple[int, ...]]) -> Answer:
        """Send one request and note when each of its tokens came."""
        client, news = self._stream()
        client.async_stream_infer(self._endpoint.model, tensors(_fields(work)), enable_empty_final_response=True)
        ids: list[int] = []
        times: list[float] = []
        is_last = False
        while not is_last:
            try:
                result, error = news.get(timeout=self._endpoint.timeout_s)
            except queue.Empty:
                del self._own.stream
                return Answer(error=f"no answer within {self._endpoint.timeout_s:g} s")
            if error is not None:
                raise self._endpoint.refusal(error)
            response = result.get_response()
            found = [] if not response.outputs else result.as_numpy("output_ids").reshape(-1).tolist()
            ids += found
            times += [self._clock.now()] * len(found)
            is_last = response.parameters["triton_final_response"].bool_param
        tokens[index] = tuple(ids)
        return Answer(tuple(times), len(work.prompt_ids))

    def _stream(self) -> tuple[Any, queue.Queue[tuple[Any, Any]]]:
        """Return this thread's connection and what arrives on it."""
        if not hasattr(self._own, "stream"):
            client, news = self._endpoint.connect(), queue.Queue[tuple[Any, Any]]()
            client.start_stream(lambda result, error: news.put((result, error)))
            self._own.stream = (client, news)
        stream: tuple[Any, queue.Queue[tuple[Any, Any]]] = self._own.stream
        return stream


def _fields(work: Work) -> dict[str, Array]:
    """Return a request's inputs: greedy, streamed, exactly `output_tokens` tokens."""
    return {
        "input_ids": np.array([work.prompt_ids], np.int32),
        "max_tokens": np.array([[work.output_tokens]], np.int32),
        "temperature": np.zeros((1, 1), np.float32),
        "ignore_eos": np.ones((1, 1), np.bool_),
        "stream": np.ones((1, 1), np.bool_),
    }


def tensors(arrays: Mapping[str, Array]) -> list[Any]:
    """Return arrays as the client library sends them."""
    import tritonclient.grpc as triton
    from tritonclient.utils import np_to_triton_dtype

    made = []
    for name, value in arrays.items():
        tensor = triton.InferInput(name, list(value.shape), np_to_triton_dtype(value.dtype))
        made.append(tensor.set_data_from_numpy(np.ascontiguousarray(value)))
    return made
