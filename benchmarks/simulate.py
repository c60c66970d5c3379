"""Simulated schedules, and slots against pages: Llama-2-7B on an A100 with 80 GB, at its roofline.

Lengths are log-normal, with ShareGPT's means from vLLM's paper (161 and 338 tokens) and standard deviations equal to
them. Slots hold 2,048 tokens. `python -m benchmarks.simulate [PART...]` simulates all parts or some.
"""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from itertools import product
from typing import TYPE_CHECKING, Any, get_args

import numpy as np

from benchmarks.measure import RESULTS, write
from benchmarks.opening import used
from trtkit.jobs.runner import ChildRunner
from trtkit.llm.scheduler import ScheduleOptions
from trtkit.planning.gpus import find_gpus
from trtkit.planning.plan import PlanRequest, llm_question
from trtkit.planning.source import find_model
from trtkit.serving_options import SCHEDULES
from trtkit.simulation.fleet import FleetOptions, simulate
from trtkit.simulation.machine import Caches, MachineOptions, machine_of
from trtkit.simulation.replica_options import ReplicaOptions
from trtkit.simulation.summary import summarize
from trtkit.simulation.traffic import TrafficOptions, random_traffic

if TYPE_CHECKING:
    from collections.abc import Callable

    from trtkit.planning.question import PlanningQuestion
    from trtkit.simulation.requests import Traffic
    from trtkit.simulation.summary import Summary

MODEL, GPU, LENGTH, PAGE = "llama-2-7b", "a100-80", 2048, 16
COUNT = 6000
SLOTS_OF_SCHEDULES = 16
HOST_BYTES = 1 << 30
LOADS = {"half": 0.5, "high": 0.8, "full": 0.95}
FASTSERVE = "arXiv 2305.05920: at most 31.4x and 17.9x vLLM's throughput at the same average and tail latency"
VLLM = "arXiv 2309.06180: earlier systems use 20.4 % to 38.2 % of their caches' memory; 2x to 4x their throughput"


def traffic(rate: float, pattern: str = "poisson", count: int = COUNT, shared: int = 0) -> Traffic:
    """Return requests; each prompt begins with `shared` additional tokens, one of eight prefixes."""
    law = TrafficOptions(rate, count, pattern, 4.0, 161 + shared, 338, 161.0, 338.0, shared, 8)  # type: ignore[arg-type]
    return random_traffic(law, LENGTH)


def replica(
    question: PlanningQuestion, slots: int | None, caches: Caches = "linear", block_tokens: int = 0
) -> ReplicaOptions:
    """Return an engine on the GPU."""
    (gpu,) = find_gpus([GPU])
    machine = machine_of(question, gpu, MachineOptions(slots=slots), caches)
    host_tokens = HOST_BYTES // machine.token_bytes
    pages = None if caches == "linear" else machine.cache_tokens // PAGE
    options = ReplicaOptions(machine.times, machine.slots, LENGTH, 512, None, pages, PAGE, block_tokens, host_tokens)
    return replace(options, token_bytes=machine.token_bytes)


def run(work: Traffic, options: ReplicaOptions) -> Summary:
    """Serve the requests with one engine."""
    fleet = FleetOptions(options)
    return summarize(work, simulate(work, fleet), fleet, {})


def capacity(options: ReplicaOptions, shared: int = 0) -> Summary:
    """Return an engine's figures under overload: all requests arrive within the first seconds."""
    return run(traffic(1e3, count=2000, shared=shared), options)


def schedules(question: PlanningQuestion) -> dict[str, Any]:
    """Return each schedule's latencies at several shares of the capacity of 16 slots."""
    options = replica(question, SLOTS_OF_SCHEDULES)
    large = replace(options, host_tokens=64 * options.host_tokens)
    most = capacity(options).requests_per_second
    figures: dict[str, Any] = {"slots": SLOTS_OF_SCHEDULES, "most_requests_per_second": round(most, 3), "runs": []}
    for pattern in ("poisson", "bursty"):
        for load, share in LOADS.items():
            work = traffic(share * most, pattern)
            for name, gib, base in (*((name, 1, options) for name in SCHEDULES), ("mlfq", 64, large)):
                own = replace(base, schedule=ScheduleOptions(name))
                what = {"arrivals": pattern, "load": load, "schedule": name, "host_gib": gib}
                figures["runs"].append({**what, **latencies(work, own)})
    return figures


def latencies(work: Traffic, options: ReplicaOptions) -> dict[str, Any]:
    """Return the mean and 99th percentile of TTFT, latency, and latency per answer token."""
    fleet = FleetOptions(options)
    record = simulate(work, fleet)
    found = summarize(work, record, fleet, {})
    per_token_ms = 1e3 * (record.finished_s - work.arrival_s) / work.output_tokens
    return {
        "ttft_ms": _pair(found.ttft.mean_ms, found.ttft.p99_ms),
        "latency_ms": _pair(found.latency.mean_ms, found.latency.p99_ms),
        "latency_per_token_ms": _pair(float(per_token_ms.mean()), float(np.quantile(per_token_ms, 0.99))),
        "preemptions": found.preemptions,
    }


def _pair(mean: float, p99: float) -> dict[str, float]:
    return {"mean": round(mean, 2), "p99": round(p99, 2)}


def memory(question: PlanningQuestion) -> dict[str, Any]:
    """Return concurrent sequences, tokens per second and unused memory: slots, pages, pages with shared prefixes."""
    figures = {}
    prompts = (("", 0, 0), (", 512 more prompt tokens", 512, 0), (", 512 more shared prompt tokens", 512, 512))
    for (name, shared, block_tokens), caches in product(prompts, get_args(Caches)):
        found = capacity(replica(question, None, caches, block_tokens), shared)
        figures[caches + name] = {
            "sequences_at_once": found.most_running,
            "output_tokens_per_second": round(found.output_tokens_per_second, 1),
            "unused_share_of_reserved_memory": round(found.waste, 4),
            "cached_share_of_prompt_tokens": round(found.shared, 4),
            "preemptions": found.preemptions,
        }
    return figures


def main(parts: list[str] | None = None) -> None:
    """Simulate, and write benchmarks/results/simulate.json."""
    path = RESULTS / "simulate.json"
    known: dict[str, Any] = json.loads(path.read_text()) if path.is_file() and parts else {}
    runner = ChildRunner()
    question = llm_question(find_model(MODEL), PlanRequest(find_gpus([GPU]), LENGTH - 1, 1, 1), runner)
    options = replica(question, SLOTS_OF_SCHEDULES)
    million = traffic(8.0, count=1_000_000)
    measured: dict[str, Callable[[], Any]] = {
        "schedules": lambda: schedules(question),
        "memory": lambda: memory(question),
        "cpu_seconds_for_a_million_requests": lambda: round(
            used(lambda: simulate(million, FleetOptions(options, 4))), 1
        ),
    }
    figures = {name: run() if name in (parts or measured) else known[name] for name, run in measured.items()}
    about = {"model": MODEL, "gpu": GPU, "efficiency": 1.0, "claims_of_fastserve": FASTSERVE, "claims_of_vllm": VLLM}
    print(write("simulate", {**about, **figures}))


if __name__ == "__main__":
    main(sys.argv[1:])
