"""KV cache memory on published traces, simulated: Llama 3.1 8B on H200s, at their roofline.

Each kind of cache serves the first 4,000 requests of each trace at a thousand times the original rate, so that there
are always more than fit. `benchmarks.host_memory` adds host memory.

`python -m benchmarks.trace_memory FOLDER [TRACE...]` simulates all traces or some. FOLDER has the files
of the GitHub repositories Azure/AzurePublicDataset (data/AzureLLMInferenceTrace_*.csv) and kvcache-ai/Mooncake
(FAST25-release/traces/*.jsonl).
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks.measure import RESULTS, write, write_between
from trtkit.errors import SimulationError
from trtkit.jobs.runner import ChildRunner
from trtkit.planning.gpus import find_gpus
from trtkit.planning.plan import PlanRequest, llm_question
from trtkit.planning.source import find_model
from trtkit.simulation.fleet import FleetOptions, simulate
from trtkit.simulation.machine import Caches, MachineOptions, machine_of
from trtkit.simulation.replica_options import ReplicaOptions
from trtkit.simulation.requests import BLOCK_TOKENS, Traffic
from trtkit.simulation.summary import summarize
from trtkit.simulation.traffic import read_traffic

if TYPE_CHECKING:
    from trtkit.planning.question import PlanningQuestion
    from trtkit.simulation.machine import Machine
    from trtkit.simulation.summary import Summary

DOCS = Path(__file__).parents[1] / "docs/memory-costs.md"
MODEL, GPU, LONGEST = "llama-3.1-8b", "h200", 131072
TRACES = {
    "Azure, code": "AzureLLMInferenceTrace_code.csv",
    "Azure, conversations": "AzureLLMInferenceTrace_conv.csv",
    "Mooncake, conversations": "conversation_trace.jsonl",
    "Mooncake, synthetic": "synthetic_trace.jsonl",
}
COUNT, SPEED, BUDGET = 4000, 1000, 2048
SLOTS = (1024, 768, 512, 384, 256, 192, 128, 96, 64, 48, 32, 24, 16, 8)


@dataclass(frozen=True)
class Form:
    """A kind of cache. page_tokens: tokens per page. shares: whether prompts share cached prefixes."""

    caches: Caches
    page_tokens: int = 16
    shares: bool = False


FORMS = {
    "linear": Form("linear"),
    **{f"paged, {size} tokens a page": Form("paged", size) for size in (16, 32, 64, 128)},
    "paged-in-place": Form("paged-in-place"),
    "linear, shared prefixes": Form("linear", shares=True),
    "paged, shared prefixes": Form("paged", shares=True),
    "paged-in-place, shared prefixes": Form("paged-in-place", shares=True),
}


def read(path: Path, speed: float) -> Traffic:
    """Return a trace's requests that fit the model's context, at `speed` times their rate."""
    whole = read_traffic(path, speed)
    kept = np.flatnonzero(lengths(whole) <= LONGEST).tolist()
    hash_ids = [whole.hash_ids[number] for number in kept] if whole.hash_ids else ()
    return Traffic(whole.arrival_s[kept], whole.input_tokens[kept], whole.output_tokens[kept], hash_ids)


def lengths(work: Traffic) -> np.ndarray[Any, Any]:
    """Return the tokens of each request, its answer included."""
    total: np.ndarray[Any, Any] = work.input_tokens + work.output_tokens
    return total


def ask(work: Traffic) -> PlanningQuestion:
    """Return the planning question for the longest of these requests."""
    request = PlanRequest(find_gpus([GPU]), int(lengths(work).max()) - 1, 1, 1)
    return llm_question(find_model(MODEL), request, ChildRunner())


def machine(question: PlanningQuestion, caches: Caches, mean_tokens: float) -> Machine:
    """Return the GPU with as many slots as its pages hold sequences of mean length; page copies take memory."""
    (gpu,) = find_gpus([GPU])
    if caches == "linear":
        return machine_of(question, gpu, MachineOptions(), caches)
    fitting = []
    for slots in SLOTS:
        try:
            fitting.append(machine_of(question, gpu, MachineOptions(slots=slots), caches))
        except SimulationError:  # copies of so many sequences' pages leave no room
            continue
    return max(fitting, key=lambda each: min(each.slots, each.cache_tokens / mean_tokens))


def engine(question: PlanningQuestion, form: Form, mean_tokens: float) -> ReplicaOptions:
    """Return an engine with caches of a form."""
    own = machine(question, form.caches, mean_tokens)
    pages = None if form.caches == "linear" else own.cache_tokens // form.page_tokens
    blocks = BLOCK_TOKENS if form.shares else 0
    options = ReplicaOptions(own.times, own.slots, own.slot_tokens, budget=BUDGET, block_tokens=blocks)
    return replace(options, pages=pages, page_tokens=form.page_tokens, token_bytes=own.token_bytes)


def run(work: Traffic, fleet: FleetOptions) -> Summary:
    """Serve requests."""
    return summarize(work, simulate(work, fleet), fleet, {})


def memory(work: Traffic) -> dict[str, Any]:
    """Return the figures of each kind of cache for a trace's first requests."""
    question, mean = ask(work), float(lengths(work).mean())
    first = slice(COUNT)
    work = Traffic(work.arrival_s[first], work.input_tokens[first], work.output_tokens[first], work.hash_ids[first])
    figures = {}
    for name, form in FORMS.items():
        if form.shares and not work.hash_ids:
            continue
        options = engine(question, form, mean)
        found = run(work, FleetOptions(options))
        figures[name] = {
            "slots": options.slots,
            "sequences_at_once": round(found.running, 1),
            "most_sequences_at_once": found.most_running,
            "output_tokens_per_second": round(found.output_tokens_per_second, 1),
            "share_of_reserved_memory_without_a_token": round(found.waste, 4),
            "of_it_for_prompts_not_computed_yet": round(found.unread, 4),
            "cached_share_of_prompt_tokens": round(found.shared, 4),
            "preemptions": found.preemptions,
        }
        print(name, figures[name], flush=True)
    return figures


def about(work: Traffic, path: Path) -> dict[str, Any]:
    """Describe a trace, and `work`, the part of it that fits the model's context."""
    total = lengths(work)
    return {
        "file": path.name,
        "requests": len(work),
        "longer_than_the_model_takes": len(read_traffic(path)) - len(work),
        "mean_prompt_tokens": round(float(work.input_tokens.mean()), 1),
        "mean_output_tokens": round(float(work.output_tokens.mean()), 1),
        "longest": int(total.max()),
    }


def table(traces: dict[str, Any]) -> str:
    """Return the rows of the table in docs/memory-costs.md."""
    titles = ("sequences at once", "output tokens/s", "empty places", "prompts not computed yet", "prefix hits")
    rows = [f"| trace: mean, longest | caches | {' | '.join(titles)} |", f"| --- | --- {'| --: ' * len(titles)}|"]
    for trace, found in traces.items():
        mean = found["mean_prompt_tokens"] + found["mean_output_tokens"]
        name = f"{trace}: {mean:,.0f}, {found['longest']:,}"
        for form, figures in found["caches"].items():
            unread = figures["of_it_for_prompts_not_computed_yet"]
            cells = (
                f"{figures['sequences_at_once']:.0f}",
                f"{figures['output_tokens_per_second']:,.0f}",
                _share(figures["share_of_reserved_memory_without_a_token"] - unread),
                _share(unread),
                _share(figures["cached_share_of_prompt_tokens"]) if "shared" in form else "",
            )
            rows.append(f"| {name} | {form} | {' | '.join(cells)} |")
            name = ""
    return "\n".join(rows) + "\n"


def _share(value: float) -> str:
    return f"{100 * value:.1f} %"


def main(folder: Path, parts: list[str]) -> None:
    """Simulate, write benchmarks/results/trace_memory.json, and put the tables into the docs."""
    traces: dict[str, Any] = {}
    for name, file in TRACES.items():
        if not parts or name in parts:
            work = read(folder / file, SPEED)
            traces[name] = {**about(work, folder / file), "caches": memory(work)}
    path = RESULTS / "trace_memory.json"
    known: dict[str, Any] = json.loads(path.read_text()) if path.is_file() else {"traces": {}}
    traces = {**known["traces"], **traces}
    traces = {name: traces[name] for name in TRACES if name in traces}
    print(write("trace_memory", {"model": MODEL, "gpu": GPU, "efficiency": 1.0, "traces": traces}))
    write_between(DOCS, "traces", table(traces))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
