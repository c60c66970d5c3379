"""A client of language models on Triton: requests, streamed responses, metrics."""

from __future__ import annotations

import contextlib
import json
import queue
import time
import urllib.error
import urllib.request
from typing import TYPE_CHECKING, Any

import numpy as np
import tritonclient.grpc as triton
from tritonclient.utils import np_to_triton_dtype

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.support.triton import Served

TIMEOUT_S = 120
# The chat model of the tests' shared server, and its prompt.
MODEL, PROMPT = "chat", "the sky is"
_FLOATS = {"temperature", "top_p", "runtime_top_p", "min_p", "typical_p", "length_penalty", "len_penalty"}
_FLOATS |= {"repetition_penalty", "presence_penalty", "frequency_penalty", "embedding_bias_weights"}
_UNSIGNED = {"seed", "random_seed"}
Answer = dict[str, Any]


def tensor(name: str, value: Any) -> triton.InferInput:
    """Return an input [1, N], or [rows, N] if `value` is a list of lists."""
    rows = value if isinstance(value, list) and value and isinstance(value[0], list) else [value]
    rows = [row if isinstance(row, list) else [row] for row in rows]
    first = rows[0][0]
    if isinstance(first, (str, bytes)):
        encoded = [[item.encode() if isinstance(item, str) else item for item in row] for row in rows]
        array = np.array(encoded, dtype=np.object_)
    elif isinstance(first, bool):
        array = np.array(rows)
    else:
        array = np.array(rows, dtype="f4" if name in _FLOATS else "u8" if name in _UNSIGNED else "i4")
    request_input = triton.InferInput(name, list(array.shape), np_to_triton_dtype(array.dtype))
    request_input.set_data_from_numpy(array)
    return request_input


@contextlib.contextmanager
def stream(served: Served, model: str, **inputs: Any) -> Iterator[Callable[[], Answer | None]]:
    """Send a request; yield a function that returns the next response's tensors, None after the last.

    Leaving the block early cancels the request.
    """
    client = triton.InferenceServerClient(served.grpc)
    news: queue.Queue[tuple[Any, Any]] = queue.Queue()
    client.start_stream(lambda result, error: news.put((result, error)))
    tensors = [tensor(name, value) for name, value in inputs.items()]
    client.async_stream_infer(model, tensors, enable_empty_final_response=True)

    def following() -> Answer | None:
        result, error = news.get(timeout=TIMEOUT_S)
        if error is not None:
            raise error
        response = result.get_response()
        if not response.outputs:
            return None
        return {output.name: result.as_numpy(output.name) for output in response.outputs}

    try:
        yield following
    finally:
        client.stop_stream(cancel_requests=True)
        client.close()


def answers(served: Served, model: str, **inputs: Any) -> list[Answer]:
    """Return all responses to a request over gRPC."""
    with stream(served, model, **inputs) as following:
        return list(iter(following, None))


def text(pieces: list[Answer]) -> str:
    """Return the text of streamed pieces."""
    return "".join(each["text_output"][0].decode() for each in pieces)


def generate(served: Served, model: str, **inputs: Any) -> tuple[int, Answer]:
    """POST to the `generate` endpoint; return the HTTP status and the JSON answer."""
    request = urllib.request.Request(f"http://{served.http}/v2/models/{model}/generate", json.dumps(inputs).encode())
    try:
        with urllib.request.urlopen(request, timeout=TIMEOUT_S) as answer:
            return answer.status, json.loads(answer.read())
    except urllib.error.HTTPError as error:
        return error.code, json.loads(error.read())


def metric(served: Served, name: str) -> float:
    """Return one of the model's metrics."""
    with urllib.request.urlopen(served.metrics, timeout=TIMEOUT_S) as answer:
        lines = answer.read().decode().splitlines()
    return next(float(line.rpartition(" ")[2]) for line in lines if line.startswith(f"{name}{{"))


def wait_until(served: Served, name: str, is_so: Callable[[float], bool], timeout_s: float = 120.0) -> None:
    """Wait until a metric satisfies `is_so`; fail after a timeout."""
    deadline = time.monotonic() + timeout_s
    while not is_so(value := metric(served, name)):
        assert time.monotonic() < deadline, f"{name} stays {value}"
        time.sleep(0.05)
