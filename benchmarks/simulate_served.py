"""A simulation against a real run: SmolLM2 served by Dynamo on this machine, and the same requests simulated.

Step times are measured on the same server right before and after: prompts of several lengths one at a time, and one and
all slots decoding. `python -m benchmarks.simulate_served` writes results/simulate_served.json.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from openai import AsyncOpenAI

from benchmarks.measure import write
from tests.dynamo import MODEL, serving
from trtkit.config.load import load_config
from trtkit.engine.build import build_bundle
from trtkit.jobs.runner import ChildRunner
from trtkit.simulation.fleet import FleetOptions, simulate
from trtkit.simulation.replica_options import ReplicaOptions
from trtkit.simulation.summary import summarize
from trtkit.simulation.times import MeasuredTimes
from trtkit.simulation.traffic import TrafficOptions, random_traffic

SLOTS, PROMPTS, ROUNDS = 4, (8, 64, 192), 3
LAW = TrafficOptions(0.2, 40, "poisson", 1.0, 64, 32, 32.0, 16.0, seed=3)


@dataclass(frozen=True)
class Timed:
    """A request's times in seconds: to the first token, and between the others on average."""

    ttft_s: float
    tpot_s: float


async def ask(client: AsyncOpenAI, number: int, inputs: int, outputs: int) -> Timed:
    """Send a prompt that no other begins like; return its times."""
    ids = [5 + (number * 7919 + place * 104729) % 40000 for place in range(inputs)]
    started, first_s = time.perf_counter(), 0.0
    settings: dict[str, Any] = {"max_tokens": outputs, "temperature": 0, "extra_body": {"ignore_eos": True}}
    stream: Any = await client.completions.create(model=MODEL, prompt=ids, stream=True, **settings)
    async for piece in stream:
        if piece.choices and not first_s:
            first_s = time.perf_counter()
    ended_s = time.perf_counter()
    return Timed(first_s - started, (ended_s - first_s) / max(1, outputs - 1))


async def calibrate(client: AsyncOpenAI, first: int) -> tuple[MeasuredTimes, float]:
    """Return step times, and the seconds that a request spends outside the engine.

    Lines through the medians of prompts of three lengths, and of one and all slots decoding. A call for a prompt of no
    tokens takes what a decode step of one row does; the rest is the frontend's time and the client's.
    """
    numbers = iter(range(first, first + 1000))
    ttfts = [
        float(np.median([(await ask(client, next(numbers), size, 2)).ttft_s for _ in range(ROUNDS)]))
        for size in PROMPTS
    ]
    token_s, call_s = np.polyfit(PROMPTS, ttfts, 1)
    tpots = []
    for count in (1, SLOTS):
        rounds = [
            await asyncio.gather(*(ask(client, next(numbers), 8, 32) for _ in range(count))) for _ in range(ROUNDS)
        ]
        tpots.append(float(np.median([each.tpot_s for timed in rounds for each in timed])))
    row_s = max(0.0, (tpots[1] - tpots[0]) / (SLOTS - 1))
    own_s = min(float(call_s), tpots[0])
    return MeasuredTimes(tpots[0] - row_s, row_s, 0.0, own_s, float(token_s)), float(call_s) - own_s


async def play(client: AsyncOpenAI) -> list[Timed]:
    """Send the traffic's requests when they are due."""
    traffic, started = random_traffic(LAW, 256), time.perf_counter()

    async def due(number: int, at_s: float, inputs: int, outputs: int) -> Timed:
        await asyncio.sleep(max(0.0, at_s - (time.perf_counter() - started)))
        return await ask(client, 10_000 + number, inputs, outputs)

    columns = zip(traffic.arrival_s, traffic.input_tokens, traffic.output_tokens, strict=True)
    return list(await asyncio.gather(*(due(i, float(t), int(n), int(m)) for i, (t, n, m) in enumerate(columns))))


async def run(url: str) -> dict[str, Any]:
    """Measure step times, play the traffic, measure again, and simulate it with the mean of both."""
    client = AsyncOpenAI(base_url=url, api_key="none", timeout=600.0, max_retries=0)
    await ask(client, 1, 8, 8)
    before, outside_s = await calibrate(client, 100)
    timed = await play(client)
    after, outside_after_s = await calibrate(client, 50_000)
    outside_ms = 1e3 * (outside_s + outside_after_s) / 2
    mean = {name: (value + asdict(after)[name]) / 2 for name, value in asdict(before).items()}
    traffic = random_traffic(LAW, 256)
    fleet = FleetOptions(ReplicaOptions(MeasuredTimes(**mean), SLOTS, 1024, 512))
    simulated = summarize(traffic, simulate(traffic, fleet), fleet, {})
    ttft_s, tpot_s = (np.mean([getattr(each, name) for each in timed]) for name in ("ttft_s", "tpot_s"))
    real = {"ttft_ms": 1e3 * ttft_s, "tpot_ms": 1e3 * tpot_s}
    own = {"ttft_ms": simulated.ttft.mean_ms + outside_ms, "tpot_ms": simulated.tpot.mean_ms}
    return {
        "step_times_before": asdict(before),
        "step_times_after": asdict(after),
        "outside_the_engine_ms": round(outside_ms, 2),
        "traffic": asdict(LAW),
        "measured": {name: round(float(value), 2) for name, value in real.items()},
        "simulated": {name: round(value, 2) for name, value in own.items()},
        "simulated_over_measured": {name: round(own[name] / float(real[name]), 3) for name in own},
    }


def main() -> None:
    """Build the bundle, serve it, compare, write."""
    with tempfile.TemporaryDirectory() as folder:
        bundle = build_bundle(load_config("llama"), Path(folder) / "llama", ChildRunner()).bundle.path
        with serving(bundle, slots=SLOTS) as running:
            figures = asyncio.run(run(running.fleet.options.url))
    print(write("simulate_served", {"model": "SmolLM2-135M, reference executor", "slots": SLOTS, **figures}))


if __name__ == "__main__":
    main()
