"""`trtkit simulate` against a real run: SmolLM2 served by Dynamo on this machine, and the same requests simulated.

Requests are sent in several parts. Step times are measured on the same server before, between and after them: single
prompts of several lengths, and one or all slots decoding. Each part is simulated with the mean of the step times before
and after it. `python -m benchmarks.simulate_served` writes results/simulate_served.json.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from openai import AsyncOpenAI

from benchmarks.measure import write
from tests.support.dynamo import MODEL, serving
from trtkit.builder.build import build_bundle
from trtkit.config.load import load_config
from trtkit.jobs.runner import ChildRunner
from trtkit.simulation.fleet import FleetOptions, simulate
from trtkit.simulation.replica_options import ReplicaOptions
from trtkit.simulation.summary import summarize
from trtkit.simulation.times import MeasuredTimes
from trtkit.simulation.traffic import TrafficOptions, random_traffic

if TYPE_CHECKING:
    from trtkit.simulation.requests import Traffic

SLOTS, PROMPTS, ROUNDS, PARTS = 4, (8, 64, 192), 4, 6
LAW = TrafficOptions(0.5, 30, "poisson", 1.0, 64, 32, 32.0, 16.0, seed=3)


@dataclass(frozen=True)
class Timed:
    """A request's TTFT, and its mean time per further token, in seconds."""

    ttft_s: float
    tpot_s: float


async def ask(client: AsyncOpenAI, number: int, inputs: int, outputs: int) -> Timed:
    """Send a prompt with a unique prefix; return its times. number: less than 40,000."""
    ids = [5 + (number * 7919 + place * 104729) % 40000 for place in range(inputs)]
    started, first_s = time.perf_counter(), 0.0
    settings: dict[str, Any] = {"max_tokens": outputs, "temperature": 0, "extra_body": {"ignore_eos": True}}
    stream: Any = await client.completions.create(model=MODEL, prompt=ids, stream=True, **settings)
    async for piece in stream:
        if piece.choices and not first_s:
            first_s = time.perf_counter()
    ended_s = time.perf_counter()
    return Timed(first_s - started, (ended_s - first_s) / max(1, outputs - 1))


@dataclass(frozen=True)
class Calibration:
    """Step times, and the seconds per request outside the engine."""

    times: MeasuredTimes
    outside_s: float


async def calibrate(client: AsyncOpenAI, first: int) -> Calibration:
    """Measure step times: linear fits to prompts of three lengths, and to one and all slots decoding.

    A prompt of zero tokens is taken to cost as much as a decode step of one row; the remainder of the intercept is
    frontend's and client's time. first: the number of the first prompt.
    """
    numbers = iter(range(first, first + 1_000))
    lengths = PROMPTS * ROUNDS
    token_s, call_s = np.polyfit(lengths, [(await ask(client, next(numbers), size, 2)).ttft_s for size in lengths], 1)
    tpots = []
    for count in (1, SLOTS):
        rounds = [
            await asyncio.gather(*(ask(client, next(numbers), 8, 32) for _ in range(count))) for _ in range(ROUNDS)
        ]
        tpots.append(float(np.mean([each.tpot_s for timed in rounds for each in timed])))
    row_s = max(0.0, (tpots[1] - tpots[0]) / (SLOTS - 1))
    own_s = min(float(call_s), tpots[0])
    return Calibration(MeasuredTimes(tpots[0] - row_s, row_s, 0.0, own_s, float(token_s)), float(call_s) - own_s)


def between(before: Calibration, after: Calibration) -> Calibration:
    """Return the mean of two measurements."""
    ends = asdict(after.times)
    means = {name: (value + ends[name]) / 2 for name, value in asdict(before.times).items()}
    return Calibration(MeasuredTimes(**means), (before.outside_s + after.outside_s) / 2)


async def play(client: AsyncOpenAI, traffic: Traffic, first: int) -> list[Timed]:
    """Send the requests of `traffic` at their arrival times. first: the number of the first prompt."""
    started = time.perf_counter()

    async def due(number: int, at_s: float, inputs: int, outputs: int) -> Timed:
        await asyncio.sleep(max(0.0, at_s - (time.perf_counter() - started)))
        return await ask(client, first + number, inputs, outputs)

    columns = zip(traffic.arrival_s, traffic.input_tokens, traffic.output_tokens, strict=True)
    return list(await asyncio.gather(*(due(i, float(t), int(n), int(m)) for i, (t, n, m) in enumerate(columns))))


def simulated_ms(traffic: Traffic, calibration: Calibration) -> tuple[float, float]:
    """Return the simulated requests' mean TTFT, including time outside the engine, and mean TPOT, in ms."""
    fleet = FleetOptions(ReplicaOptions(calibration.times, SLOTS, 1024, 512))
    summary = summarize(traffic, simulate(traffic, fleet), fleet, {})
    return summary.ttft.mean_ms + 1e3 * calibration.outside_s, summary.tpot.mean_ms


async def run(url: str) -> dict[str, Any]:
    """Send and simulate each part, with measurements of step times between them."""
    client = AsyncOpenAI(base_url=url, api_key="none", timeout=600.0, max_retries=0)
    await ask(client, 1, 8, 8)
    calibrations, measured, simulated = [await calibrate(client, 100)], [], []
    for part in range(PARTS):
        traffic = random_traffic(replace(LAW, seed=LAW.seed + part), 256)
        timed = await play(client, traffic, 4_000 * (part + 1))
        calibrations.append(await calibrate(client, 4_000 * (part + 1) + 2_000))
        ttft_s, tpot_s = (np.mean([getattr(each, name) for each in timed]) for name in ("ttft_s", "tpot_s"))
        measured.append((1e3 * float(ttft_s), 1e3 * float(tpot_s)))
        simulated.append(simulated_ms(traffic, between(*calibrations[-2:])))
    names = ("ttft_ms", "tpot_ms")
    real, own = (
        dict(zip(names, np.mean(rows, axis=0).round(2).tolist(), strict=True)) for rows in (measured, simulated)
    )
    return {
        "step_times": [asdict(each) for each in calibrations],
        "traffic": asdict(LAW),
        "parts": PARTS,
        "measured_by_part": np.round(measured, 2).tolist(),
        "simulated_by_part": np.round(simulated, 2).tolist(),
        "measured": real,
        "simulated": own,
        "simulated_over_measured": {name: round(own[name] / real[name], 3) for name in names},
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
