"""Host memory for KV caches on published traces, and FastServe's comparison, simulated at each GPU's roofline.

Llama 3.1 8B on H200s serves the first 4,000 requests of each trace, with pages of 64 tokens, read in place: Mooncake's
at their original rate; Azure's, which share no prefixes, a hundred times as fast, so that pages are scarce.
FastServe: Llama-2-7B on an A100 with 80 GB, 16 slots, lengths as in `benchmarks.simulate`.

`python -m benchmarks.host_memory FOLDER [PART...]` simulates all parts or some. FOLDER: see `benchmarks.trace_memory`.
"""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks import simulate as schedules
from benchmarks.measure import RESULTS, write, write_between
from benchmarks.trace_memory import COUNT, TRACES, Form, ask, engine, lengths, read
from trtkit.jobs.runner import ChildRunner
from trtkit.llm.scheduler import ScheduleOptions
from trtkit.planning.gpus import find_gpus
from trtkit.planning.plan import PlanRequest, llm_question
from trtkit.planning.source import find_model
from trtkit.simulation.fleet import FleetOptions, simulate
from trtkit.simulation.requests import Traffic
from trtkit.simulation.summary import summarize

if TYPE_CHECKING:
    from trtkit.simulation.replica_options import ReplicaOptions

DOCS = Path(__file__).parents[1] / "docs/memory-costs.md"
HOST_PAGE = 64
WAITED, BACKGROUND = "between steps", "while steps run"
CASES = ((0, BACKGROUND), (64, WAITED), (64, BACKGROUND), (512, WAITED), (512, BACKGROUND))
GPUS = {"Azure, code": 1, "Azure, conversations": 1, "Mooncake, conversations": 3, "Mooncake, synthetic": 3}
SPEEDS = {"Azure, code": 100.0, "Azure, conversations": 100.0}
FASTSERVE_COUNT = 3000


def trace(name: str, folder: Path) -> dict[str, Any]:
    """Return the figures of a trace's first requests for several sizes of host memory per GPU."""
    whole, first = read(folder / TRACES[name], SPEEDS.get(name, 1.0)), slice(COUNT)
    columns = whole.arrival_s[first], whole.input_tokens[first], whole.output_tokens[first], whole.hash_ids[first]
    work = Traffic(*columns)
    form = Form("paged-in-place", HOST_PAGE, shares=bool(work.hash_ids))
    options, runs = engine(ask(whole), form, float(lengths(whole).mean())), []
    for gib, copies in CASES:
        tokens = gib * (1 << 30) // options.token_bytes
        case = replace(options, host_tokens=tokens, copies_in_background=copies == BACKGROUND)
        runs.append({"host_gib": gib, "copies": copies, **figures(work, FleetOptions(case, GPUS[name], "prefix"))})
        print(name, runs[-1], flush=True)
    return {"requests": len(work), "gpus": GPUS[name], "speed": SPEEDS.get(name, 1.0), "runs": runs}


def figures(work: Traffic, fleet: FleetOptions) -> dict[str, Any]:
    """Return computed and cached tokens, and latencies."""
    summary = summarize(work, simulate(work, fleet), fleet, {})
    return {
        "prompt_tokens_computed": summary.computed_tokens,
        "cached_share_of_prompt_tokens": round(summary.shared, 4),
        "restored_share_of_prompt_tokens": round(summary.restored, 4),
        "ttft_ms": {"mean": round(summary.ttft.mean_ms, 1), "p99": round(summary.ttft.p99_ms, 1)},
        "latency_ms": {"mean": round(summary.latency.mean_ms, 1), "p99": round(summary.latency.p99_ms, 1)},
        "preemptions": summary.preemptions,
    }


def fastserve() -> dict[str, Any]:
    """Return latencies of the schedule mlfq, with slots and with pages, against fcfs."""
    request = PlanRequest(find_gpus([schedules.GPU]), schedules.LENGTH - 1, 1, 1)
    question = llm_question(find_model(schedules.MODEL), request, ChildRunner())
    slots = schedules.replica(question, schedules.SLOTS_OF_SCHEDULES)
    most = schedules.capacity(slots).requests_per_second
    runs = []
    for load in ("high", "full"):
        work = schedules.traffic(schedules.LOADS[load] * most, count=FASTSERVE_COUNT)
        for schedule, gib, options in fastserve_cases(slots):
            latencies = schedules.latencies(work, replace(options, schedule=ScheduleOptions(schedule)))
            copies = BACKGROUND if options.copies_in_background else WAITED
            caches = "slots" if options.pages is None else "pages"
            runs.append({"load": load, "schedule": schedule, "caches": caches, "host_gib": gib, "copies": copies})
            runs[-1].update(latencies)
            print(runs[-1], flush=True)
    return {"requests": FASTSERVE_COUNT, "claims": schedules.FASTSERVE, "runs": runs}


def fastserve_cases(slots: ReplicaOptions) -> list[tuple[Any, int, ReplicaOptions]]:
    """Return schedules, GiB of host memory, and engines; pages and slots take equal memory."""
    large = replace(slots, host_tokens=64 * slots.host_tokens)
    pages = slots.slots * slots.slot_tokens // slots.page_tokens
    return [
        ("fcfs", 1, replace(slots, copies_in_background=True)),
        ("mlfq", 64, replace(large, copies_in_background=False)),
        ("mlfq", 64, replace(large, copies_in_background=True)),
        ("mlfq", 64, replace(large, copies_in_background=True, pages=pages)),
    ]


def table(traces: dict[str, Any]) -> str:
    """Return the rows of the table in docs/memory-costs.md."""
    titles = ("found on GPU", "on host", "TTFT, mean", "p99", "latency, mean", "p99")
    rows = [f"| trace | host memory, copies | {' | '.join(titles)} |", f"| --- | --- {'| --: ' * len(titles)}|"]
    for name, about in traces.items():
        label = name
        for run in about["runs"]:
            host = f"{run['host_gib']} GiB, {run['copies']}" if run["host_gib"] else "none"
            cached, restored = (run[f"{each}_share_of_prompt_tokens"] for each in ("cached", "restored"))
            times = [f"{run[key][each]:,.0f} ms" for key in ("ttft_ms", "latency_ms") for each in ("mean", "p99")]
            cells = (f"{100 * (cached - restored):.1f} %", f"{100 * restored:.1f} %", *times)
            rows.append(f"| {label} | {host} | {' | '.join(cells)} |")
            label = ""
    return "\n".join(rows) + "\n"


def main(folder: Path, parts: list[str]) -> None:
    """Simulate, write benchmarks/results/host_memory.json, and put the table into the docs."""
    path = RESULTS / "host_memory.json"
    known: dict[str, Any] = json.loads(path.read_text()) if path.is_file() else {"traces": {}, "fastserve": {}}
    for name in GPUS:
        if not parts or name in parts:
            known["traces"][name] = trace(name, folder)
    if not parts or "fastserve" in parts:
        known["fastserve"] = fastserve()
    traces = {name: known["traces"][name] for name in GPUS if name in known["traces"]}
    print(write("host_memory", {"efficiency": 1.0, "traces": traces, "fastserve": known["fastserve"]}))
    write_between(DOCS, "host on a trace", table(traces))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
