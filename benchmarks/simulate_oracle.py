"""`trtkit simulate` against NVIDIA's serving simulator, an independent implementation, on the same requests.

`dynamo.replay` has a scheduler like vLLM's. Both get step times from one function: `STEP_S` per decode step,
`CACHED_TOKEN_S` per token that its sequences have cached, and `PROMPT_TOKEN_S` per prompt token. Each case runs three
times: on an engine with packed calls, on one with separate calls, and on the latter `aligned`, without the three
policies in which it differs.
`python -m benchmarks.simulate_oracle` writes benchmarks/results/simulate_oracle.json, except `before`: the ratios of an
earlier commit, which matched prefixes only once and padded prompts' calls to up to twice their tokens.
"""

from __future__ import annotations

import json
import tempfile
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import numpy as np

from benchmarks.measure import RESULTS, write
from trtkit.llm.scheduler import ScheduleOptions, memory, scheduler
from trtkit.simulation.fleet import Fleet, FleetOptions
from trtkit.simulation.record import Record
from trtkit.simulation.replica_options import ReplicaOptions
from trtkit.simulation.requests import BLOCK_TOKENS, Traffic
from trtkit.simulation.times import MeasuredTimes
from trtkit.simulation.traffic import TrafficOptions, random_traffic

if TYPE_CHECKING:
    from trtkit.arrays import Array
    from trtkit.simulation.record import Passed

STEP_S, CACHED_TOKEN_S, PROMPT_TOKEN_S = 0.008, 2e-7, 1e-4
LENGTH, PAGE = 4096, 16
MANY_SLOTS, MANY_PAGES = 256, 20_000
COUNT = 2000


@dataclass(frozen=True)
class Case:
    """A workload and what is scarce. rate: requests per second. budget: tokens per step. shared: tokens per prefix."""

    rate: float
    slots: int = MANY_SLOTS
    pages: int = MANY_PAGES
    budget: int = 512
    shared: int = 0
    prefixes: int = 4
    count: int = COUNT

    def traffic(self) -> Traffic:
        """Return Poisson arrivals with log-normal lengths: prompts of 512 tokens after the prefix, answers of 128."""
        law = TrafficOptions(self.rate, self.count, "poisson", 1.0, 512 + self.shared, 128, 256.0, 64.0, self.shared)
        work = random_traffic(replace(law, prefixes=self.prefixes), LENGTH)
        hashes = [tuple(10 * which + at for at in range(self.shared // BLOCK_TOKENS)) for (which,) in work.hash_ids]
        return replace(work, hash_ids=hashes, block_tokens=BLOCK_TOKENS)


CASES = {
    "nothing scarce": Case(6),
    "slots scarce": Case(6, slots=12),
    "pages scarce": Case(12, pages=800),
    "shared prefixes": Case(10, shared=1024),
    "chunk budget 256": Case(9, budget=256),
    "chunk budget 1,024": Case(9, budget=1024),
    "overload": Case(20, slots=64),
}


class _Steps(Record):
    """A Record that also keeps the start and end of each step with prompts."""

    def __init__(self, traffic: Traffic) -> None:
        super().__init__(traffic)
        self._bounds: list[tuple[float, float]] = []

    def pass_time(self, passed: Passed) -> None:
        super().pass_time(passed)
        if passed.reading:
            self._bounds.append((passed.begin_s, passed.end_s))

    def step_ends(self, times_s: Array) -> Array:
        """Return times moved to the end of the step with prompts that they are in, if any."""
        begins_s, ends_s = np.array([(-1.0, -1.0), *self._bounds]).T
        step = np.searchsorted(begins_s, times_s, side="left") - 1
        late: Array = np.maximum(times_s, ends_s[step])
        return late


def trtkit_times(case: Case, work: Traffic, *, packed: bool = False, aligned: bool = False) -> dict[str, Array]:
    """Return each request's TTFT, TPOT and latency in seconds from trtkit's simulator.

    packed: prompts share calls with decoding sequences. aligned: tokens count at the end of their step instead of
    their call, no page is reserved for running requests, and prompts' calls are not padded.
    """
    times = MeasuredTimes(STEP_S, CACHED_TOKEN_S, CACHED_TOKEN_S, prefill_token_s=PROMPT_TOKEN_S)
    options = ReplicaOptions(times, case.slots, LENGTH, case.budget, case.budget, case.pages, PAGE)
    shared = BLOCK_TOKENS if case.shared else 0
    own = replace(options, block_tokens=shared, min_shared_tokens=PAGE, is_packed=packed)
    own = replace(own, schedule=ScheduleOptions("fcfs"))
    with ExitStack() as stack:
        if aligned:
            stack.enter_context(patch.object(memory, "_SPARE_SHARE", 0.0))
            stack.enter_context(patch.object(scheduler, "MOST_PADDING", 1.0))
        record = _simulate(work, FleetOptions(own))
    first_s, last_s = record.first_token_s, record.finished_s
    if aligned:
        first_s, last_s = record.step_ends(first_s), record.step_ends(last_s)
    return _metrics(first_s - work.arrival_s, last_s - work.arrival_s, work.output_tokens)


def _simulate(work: Traffic, options: FleetOptions) -> _Steps:
    record = _Steps(work)
    fleet = Fleet(options, record)
    for request in work.requests():
        fleet.run_until(request.arrival_s)
        fleet.submit(request)
    fleet.run_until(float("inf"))
    return record


def nvidia_times(case: Case, work: Traffic) -> dict[str, Array]:
    """Return each request's TTFT, TPOT and latency in seconds from NVIDIA's simulator."""
    from dynamo.replay import run_trace_replay

    with tempfile.TemporaryDirectory() as folder:
        profile, trace = Path(folder, "profile.npz"), Path(folder, "trace.jsonl")
        _write_profile(profile)
        trace.write_text("".join(json.dumps(row) + "\n" for row in _rows(case, work)), encoding="utf-8")
        engine = {
            "backend": "vllm",
            "block_size": PAGE,
            "num_gpu_blocks": case.pages,
            "max_num_seqs": case.slots,
            "max_num_batched_tokens": case.budget,
            "enable_chunked_prefill": True,
            "enable_prefix_caching": True,
            "timing_model": {"type": "external", "provider": "dynamo_profile", "config": {"path": str(profile)}},
        }
        options: dict[str, Any] = {"engine": engine, "dynamo": {}}
        report = run_trace_replay(
            str(trace), extra_engine_args=options, trace_block_size=BLOCK_TOKENS, capture_per_request=True
        )
    rows = sorted(report.per_request or (), key=lambda row: row["arrival_time_ms"])
    ttft, latency, outputs = (
        np.array([row[name] for row in rows]) for name in ("ttft_ms", "e2e_latency_ms", "output_length")
    )
    return _metrics(ttft / 1e3, latency / 1e3, outputs)


def _write_profile(path: Path) -> None:
    """Write the step times as an NVIDIA profile: tables whose entries are interpolated."""
    prompt, cached, context = np.array([0.0, 8192.0]), np.array([0.0, 1e6]), np.array([0.0, 8192.0])
    step_ms = 1e3 * (STEP_S + CACHED_TOKEN_S * cached)
    np.savez(
        path,
        prefill_isl=prompt,
        prefill_ttft_ms=1e3 * PROMPT_TOKEN_S * prompt,
        decode_active_kv_tokens=cached,
        decode_context_length=context,
        decode_itl=np.repeat(step_ms[:, None], len(context), 1),
    )


def _rows(case: Case, work: Traffic) -> list[dict[str, Any]]:
    """Return requests as lines of a Mooncake trace; each block that is not shared has a unique id."""
    rows, unused = [], 1_000_000
    for request in work.requests():
        blocks = -(-request.prompt_tokens // BLOCK_TOKENS)
        own = range(unused, unused + blocks - case.shared // BLOCK_TOKENS)
        unused = own.stop
        sizes = {"input_length": request.prompt_tokens, "output_length": request.output_tokens}
        rows.append({"timestamp": 1e3 * request.arrival_s, **sizes, "hash_ids": [*request.hashes, *own]})
    return rows


def _metrics(ttft: Array, latency: Array, outputs: Array) -> dict[str, Array]:
    has_gaps = outputs > 1
    tpot = (latency - ttft)[has_gaps] / (outputs - 1)[has_gaps]
    return {"ttft": ttft, "tpot": tpot, "latency": latency}


def compare(case: Case) -> dict[str, dict[str, float]]:
    """Return each metric's mean and 99th percentile in ms, and the ratios of trtkit's to NVIDIA's."""
    work = case.traffic()
    nvidia = _figures(nvidia_times(case, work))
    packed, separate, aligned = (
        _figures(trtkit_times(case, work, **kind)) for kind in ({"packed": True}, {}, {"aligned": True})
    )
    return {
        name: {
            "nvidia_ms": round(nvidia[name], 2),
            "packed_ms": round(packed[name], 2),
            "separate_ms": round(separate[name], 2),
            "packed_ratio": round(packed[name] / nvidia[name], 4),
            "separate_ratio": round(separate[name] / nvidia[name], 4),
            "aligned_ratio": round(aligned[name] / nvidia[name], 4),
        }
        for name in nvidia
    }


def _figures(times: dict[str, Array]) -> dict[str, float]:
    figures = {}
    for metric, values in times.items():
        figures[f"{metric} mean"] = 1e3 * float(values.mean())
        figures[f"{metric} p99"] = 1e3 * float(np.quantile(values, 0.99))
    return figures


def main() -> None:
    """Compare all cases, and write benchmarks/results/simulate_oracle.json."""
    path = RESULTS / "simulate_oracle.json"
    before = json.loads(path.read_text())["before"]
    times = {"step_s": STEP_S, "cached_token_s": CACHED_TOKEN_S, "prompt_token_s": PROMPT_TOKEN_S}
    figures = {name: compare(case) for name, case in CASES.items()}
    for kind in ("packed_ratio", "separate_ratio", "aligned_ratio"):
        for name, cells in figures.items():
            print(f"{kind} {name:20}", *(f"{metric} {cell[kind]:.3f}" for metric, cell in cells.items()))
    print(write("simulate_oracle", {"times": times, "requests": COUNT, "cases": figures, "before": before}))


if __name__ == "__main__":
    main()
