"""A client of vision models on Triton, over HTTP and gRPC."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import numpy as np
import tritonclient.grpc
import tritonclient.http
from tritonclient.utils import np_to_triton_dtype

from trtkit.sources.package_file import resolve

if TYPE_CHECKING:
    from tests.support.triton import Served

TIMEOUT_S = 120.0
PROTOCOLS = ["http", "grpc"]
Arrays = dict[str, np.ndarray[Any, Any]]


def connect(served: Served, protocol: str) -> Any:
    """Return the official library's client."""
    if protocol == "grpc":
        return tritonclient.grpc.InferenceServerClient(served.grpc)
    return tritonclient.http.InferenceServerClient(served.http, network_timeout=TIMEOUT_S, concurrency=8)


def ask(client: Any, model: str, version: str = "", **inputs: Any) -> Arrays:
    """Return all outputs of one request, with bytes decoded as text."""
    module = tritonclient.grpc if isinstance(client, tritonclient.grpc.InferenceServerClient) else tritonclient.http
    tensors = []
    for name, value in inputs.items():
        array = np.asarray(value) if not _is_text(value) else np.array(value, dtype=np.object_)
        tensor = module.InferInput(name, list(array.shape), np_to_triton_dtype(array.dtype))
        tensor.set_data_from_numpy(array)
        tensors.append(tensor)
    result = client.infer(model, tensors, version)
    response = result.get_response(as_json=True) if module is tritonclient.grpc else result.get_response()
    return {each["name"]: result.as_numpy(each["name"]) for each in response["outputs"]}


def sample(name: str) -> bytes:
    """Return the bytes of one of scikit-image's pictures."""
    return resolve(f"package://skimage/data/{name}", "scikit-image==0.26.0").read_bytes()


def executions(client: Any, model: str, least: int = 0) -> tuple[int, int]:
    """Return how many requests a model has answered, and in how many runs, once there are `least`.

    The server counts with a delay, so this polls until the numbers settle.
    """
    deadline, last, counts = time.monotonic() + TIMEOUT_S, None, _counts(client, model)
    while counts != last or counts[0] < least:
        assert time.monotonic() < deadline, f"{model} counts {counts[0]} requests"
        time.sleep(0.5)
        last, counts = counts, _counts(client, model)
    return counts


def _counts(client: Any, model: str) -> tuple[int, int]:
    statistics = client.get_inference_statistics(model)["model_stats"][0]
    return int(statistics["inference_count"]), int(statistics["execution_count"])


def _is_text(value: Any) -> bool:
    while isinstance(value, list):
        value = value[0]
    return isinstance(value, bytes)
