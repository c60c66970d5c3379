"""Load for a vision model: in this process, or on a server from clients in a separate process."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any

import numpy as np

from trtkit.runtime.model import open_model

if TYPE_CHECKING:
    from pathlib import Path

SHAPE, WARM_UP = (3, 224, 224), 2


class InProcess:
    """The bundle in this process."""

    def __init__(self, bundle: Path) -> None:
        self._model = open_model(bundle)

    def run(self, concurrency: int, seconds: float) -> dict[str, Any]:
        """Run batches of `concurrency` images for some time; an image's latency is its batch's."""
        images = _images(concurrency)
        for _ in range(WARM_UP):
            self._model(images)
        latencies: list[float] = []
        started = time.perf_counter()
        while time.perf_counter() - started < seconds:
            begun = time.perf_counter()
            self._model(images)
            latencies += [1e3 * (time.perf_counter() - begun)] * concurrency
        return {"per_second": len(latencies) / (time.perf_counter() - started), "latencies_ms": latencies}


class Served:
    """The bundle on a server, with clients in a separate process."""

    def __init__(self, url: str, model: str) -> None:
        self._url, self._model = url, model

    def run(self, concurrency: int, seconds: float) -> dict[str, Any]:
        """Keep `concurrency` requests of one image in flight for some time."""
        words = [self._url, self._model, str(concurrency), str(seconds)]
        command = [sys.executable, "-m", "benchmarks.serve_load", *words]
        answer = subprocess.run(command, check=True, capture_output=True, text=True)
        found: dict[str, Any] = json.loads(answer.stdout.splitlines()[-1])
        return found


def _images(count: int) -> np.ndarray[Any, Any]:
    return np.random.default_rng(0).standard_normal((count, *SHAPE)).astype(np.float32)


async def _ask(url: str, model: str, concurrency: int, seconds: float) -> dict[str, Any]:
    """Return requests per second and latencies; requests in flight at the end are awaited and count."""
    from tritonclient.grpc import InferInput
    from tritonclient.grpc.aio import InferenceServerClient

    tensor = InferInput("images", [1, *SHAPE], "FP32")
    tensor.set_data_from_numpy(_images(1))
    latencies: list[float] = []
    async with InferenceServerClient(url) as client:

        async def one_client(until: float) -> None:
            while time.perf_counter() < until:
                begun = time.perf_counter()
                await client.infer(model, [tensor])
                latencies.append(1e3 * (time.perf_counter() - begun))

        await asyncio.gather(*(one_client(time.perf_counter() + 1) for _ in range(concurrency)))
        latencies.clear()
        started = time.perf_counter()
        await asyncio.gather(*(one_client(started + seconds) for _ in range(concurrency)))
        return {"per_second": len(latencies) / (time.perf_counter() - started), "latencies_ms": latencies}


if __name__ == "__main__":
    url, model, concurrency, seconds = sys.argv[1:]
    print(json.dumps(asyncio.run(_ask(url, model, int(concurrency), float(seconds)))))
