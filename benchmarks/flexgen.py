"""Stages in turn: memory and time on the reference executor, and FlexGen's table as planned and as simulated.

The first part is a Llama with 12 layers and random weights, in fp32 on one thread: whole, and in stages whose weights
are loaded in turn, each in its own process. The second plans OPT on a T4 as in the paper, at published rates and at
those that FlexGen's authors fitted to their machine, and simulates the planned blocks. The tables go into
docs/offload.md. `python -m benchmarks.flexgen plans` runs the second part only, and keeps what was measured.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from benchmarks.measure import RESULTS, own_peak_memory_mib, run_bare, write, write_between
from trtkit import LLM, SamplingParams
from trtkit.bundle.bundle import open_bundle
from trtkit.jobs.runner import ChildRunner
from trtkit.llm.offload.decoder import OffloadedDecoder
from trtkit.llm.scheduler import DEFAULT_SCHEDULE
from trtkit.planning.gpus import find_gpus
from trtkit.planning.llm import plan_llm
from trtkit.planning.offload import OffloadPlan, block_plan
from trtkit.planning.plan import PlanRequest, llm_question
from trtkit.planning.question import Host
from trtkit.planning.source import find_model
from trtkit.simulation.fleet import FleetOptions, simulate
from trtkit.simulation.machine import MachineOptions
from trtkit.simulation.requests import Traffic
from trtkit.simulation.stages import Block, replica_in_turn
from trtkit.simulation.summary import summarize

if TYPE_CHECKING:
    from trtkit.planning.gpus import PlannedGpu
    from trtkit.planning.question import PlanningQuestion

Json = dict[str, Any]
DOCS = Path(__file__).parents[1] / "docs/offload.md"
SIZES = {"hidden_size": 1024, "intermediate_size": 2816, "num_hidden_layers": 12, "num_attention_heads": 16}
SLOTS, PROMPT, ANSWER = 16, 32, 16
WAYS = {
    "all weights": ("whole", ""),
    "6 stages, caches on the device": ("6", "device"),
    "12 stages, caches on the device": ("12", "device"),
    "12 stages, caches in host memory": ("12", "host"),
    "12 stages, caches on disk": ("12", "disk"),
}

# Tokens per second, where weights and caches are, GPU batch, number of batches. Source: batch_size_table.md and
# benchmark/flexllmgen/bench_suite.py of https://github.com/FMInference/FlexLLMGen, commit 004ffef.
PUBLISHED = {"opt-6.7b": (25.26, "device", 2, 1), "opt-30b": (7.32, "host", 48, 3), "opt-175b": (0.69, "disk", 32, 8)}
GIB = 2**30
HOST_BYTES = 208 * 10**9
PAPER = Host(HOST_BYTES, 2e9, 1e9)
"""The paper's 208 GB of memory; its disk is assumed to read 2 GB/s and write 1 GB/s."""
FITTED = Host(HOST_BYTES, 0.473 * GIB, 0.746 * GIB, 12.89 * GIB, 0.97 * GIB)
FITTED_TERA = 21.24
"""The authors' fit of prefill's matrix products, in 10^12 operations per second: experimental/cost_model.py there."""


def main() -> None:
    """Measure, plan, and write the results."""
    with tempfile.TemporaryDirectory() as folder:
        build(Path(folder))
        measured = {name: child(Path(folder) / bundle, place) for name, (bundle, place) in WAYS.items()}
    assert len({json.dumps(row.pop("tokens")) for row in measured.values()}) == 1, "answers differ"
    print(write("flexgen", {"threads": 1, "measured": measured}))
    write_between(DOCS, "measured", measured_table(measured))
    plan()


def plan() -> None:
    """Plan and simulate, and write the results next to what was measured."""
    path, planned = RESULTS / "flexgen.json", {name: planned_blocks(name) for name in PUBLISHED}
    figures = json.loads(path.read_text()) | {"planned": planned, "uneven": {each: uneven(each) for each in (0, 8)}}
    path.write_text(json.dumps(figures, indent=1) + "\n")
    write_between(DOCS, "planned", planned_table(planned))


def build(folder: Path) -> None:
    """Write a model with random weights, and build it whole and in stages."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(**SIZES, num_key_value_heads=4, vocab_size=2048, max_position_embeddings=256)
    LlamaForCausalLM(config).save_pretrained(folder / "model")
    sizes = f"llm={{max_batch_size: {SLOTS}, max_sequence_length: 64, max_prefill_length: 32}}"
    words = [sys.executable, "-m", "trtkit", "build", str(folder / "model"), "--precision", "fp32", "--quiet"]
    for name in ("whole", "6", "12"):
        grid = [] if name == "whole" else ["--set", f"parallel.pipeline={name}"]
        command = [*words, "--set", sizes, *grid, "-o", str(folder / name)]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


def child(bundle: Path, place: str) -> Json:
    """Return the figures of one placement, measured in a child process."""
    figures: Json = run_bare([sys.executable, "-m", "benchmarks.flexgen", str(bundle), place])
    print(bundle.name, place, {name: value for name, value in figures.items() if name != "tokens"}, flush=True)
    return figures


def answered(bundle: Path, place: str) -> Json:
    """Answer a block of prompts; return tokens, time, additional memory, and bytes moved."""
    torch.set_num_threads(1)
    before_mib = own_peak_memory_mib()
    generator = np.random.default_rng(1)
    prompts = [generator.integers(3, 2048, PROMPT).tolist() for _ in range(SLOTS)]
    params = SamplingParams(temperature=0, max_tokens=ANSWER, ignore_eos=True)
    options = {"offload": place, "micro_batch": 4} if place else {"prefill_budget": SLOTS * PROMPT}
    with LLM(bundle, **options) as llm:
        started = time.perf_counter()
        outputs = llm.generate(prompts, params)
        took_s = time.perf_counter() - started
        decoder = llm.frontend.execution
        weights = [sum(each.totals.weight_bytes.values()) for each in open_bundle(bundle).manifest.stages[-1].networks]
        figures: Json = {
            "tokens": [list(output.outputs[0].token_ids) for output in outputs],
            "weights_mib": round(sum(weights) / 2**20),
            "largest_stage_mib": round(max(weights) / 2**20),
            "peak_memory_mib": round(own_peak_memory_mib() - before_mib),
            "tokens_per_second": round(SLOTS * ANSWER / took_s, 1),
        }
        if isinstance(decoder, OffloadedDecoder):
            counts = decoder.counts
            figures |= {"passes": counts.passes, "loads": counts.loads, "waited_s": round(counts.waited_s, 2)}
            figures["took_s"] = round(took_s, 2)
            figures["moved_mib"] = {
                name: round(getattr(counts, f"{name}_bytes") / 2**20, 1) for name in ("loaded", "fetched", "stored")
            }
    return figures


def planned_blocks(name: str) -> Json:
    """Return a model's plans: for the paper's block and for the best one, at published and at fitted rates."""
    published, place, micro_batch, micro_batches = PUBLISHED[name]
    (gpu,) = find_gpus(["t4"])
    request = PlanRequest([gpu], 512, 32, 1, host=PAPER)
    question = llm_question(find_model(name, ["llm.max_prefill_length=512"]), request, ChildRunner())
    rows: Json = {"flexgen": published}
    if place == "device":
        request_gpu = plan_llm(replace(question, host=None), gpu)
        batch = request_gpu.largest_batch
        for key, rates in (("published", gpu.rates), ("fitted", fitted_rates(gpu.rates))):
            best = max(
                plan_llm(question, replace(gpu, rates=rates)).curve, key=lambda one: one.output_tokens_per_second
            )
            rows[key] = {"batch": best.batch, "tokens_per_second": best.output_tokens_per_second}
        return rows | {"largest_batch": batch}
    for key, host, rates in (("published", PAPER, gpu.rates), ("fitted", FITTED, fitted_rates(gpu.rates))):
        own, machine = replace(question, host=host), replace(gpu, rates=rates)
        best_plan = max(plan_llm(own, machine).offload, key=lambda plan: plan.output_tokens_per_second)
        blocks = {"best": best_plan}
        for each in ("host", "disk"):
            block = block_plan(own, machine, each, micro_batch, micro_batches)
            if block is not None:
                blocks["paper_block"] = block
                break
        rows[key] = {label: row_of(plan) | simulated(own, machine, plan) for label, plan in blocks.items()}
    return rows


def simulated(question: PlanningQuestion, gpu: PlannedGpu, plan: OffloadPlan) -> Json:
    """Return what the simulator gives for a block of prompts that come at once."""
    count, work = plan.micro_batch * plan.micro_batches, question.work
    block = Block(plan.caches, count, plan.micro_batch)
    replica, _ = replica_in_turn(question, gpu, MachineOptions(), block, DEFAULT_SCHEDULE)
    fleet = FleetOptions(replica, 1, "least-loaded", 0, 0.0)
    traffic = Traffic(np.zeros(count), np.full(count, work.input_len), np.full(count, work.output_len))
    summary = summarize(traffic, simulate(traffic, fleet), fleet, {})
    return {"simulated_tokens_per_second": summary.output_tokens_per_second}


def uneven(deviation: int) -> float:
    """Return the tokens per second of ten blocks of the paper's on OPT-30B, whose answers have 32 tokens on average."""
    words = (
        "opt-30b --gpu t4 --offload host --host-memory 208 --slots 144 --micro-batch 48 --requests 1440 --output-len 32"
    )
    command = [
        sys.executable,
        "-m",
        "trtkit",
        "simulate",
        *words.split(),
        "--output-deviation",
        str(deviation),
        "--json",
    ]
    ran = subprocess.run(command, check=True, capture_output=True, text=True)
    return float(json.loads(ran.stdout)["result"]["output_tokens_per_second"])


def fitted_rates(rates: Any) -> dict[str, float]:
    """Return a T4's rates with the authors' measured fp16 rate."""
    return {**rates, "fp16": 1e12 * FITTED_TERA}


def row_of(plan: OffloadPlan) -> Json:
    """Return a plan's figures for the table."""
    names = ("caches", "micro_batch", "micro_batches", "disk_share", "output_tokens_per_second", "bottleneck")
    return {name: getattr(plan, name) for name in names}


def measured_table(rows: Json) -> str:
    """Return memory and time as Markdown."""
    lines = [
        "| | weights | largest stage | peak memory | tokens/s | weights loaded | caches copied |",
        "| --- | --: | --: | --: | --: | --: | --: |",
    ]
    for name, row in rows.items():
        moved = row.get("moved_mib")
        cells = [f"{row['weights_mib']} MiB", f"{row['largest_stage_mib']} MiB", f"{row['peak_memory_mib']} MiB"]
        cells.append(f"{row['tokens_per_second']:.1f}")
        if moved is None:
            cells += ["once", ""]
        else:
            cells.append(f"{moved['loaded'] / 1024:.1f} GiB")
            copied = moved["fetched"] + moved["stored"]
            cells.append(f"{copied:.1f} MiB" if copied else "")
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def planned_table(rows: Json) -> str:
    """Return FlexGen's figures and the plans' as Markdown."""
    lines = [
        "| | FlexGen | its block, fitted rates | its block, published rates | best block, published rates |",
        "| --- | --- | --- | --- | --- |",
    ]
    for name, row in rows.items():
        cells = [f"{row['flexgen']:.2f}: {_published_text(name)}"]
        if "batch" in row["published"]:
            texts = [
                f"{row[key]['tokens_per_second']:.1f}: batch {row[key]['batch']}" for key in ("fitted", "published")
            ]
            cells += [texts[0], texts[1], texts[1]]
        else:
            keys = (("fitted", "paper_block"), ("published", "paper_block"), ("published", "best"))
            cells += [_block_text(row[key].get(label)) for key, label in keys]
        lines.append(f"| {name.upper()} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _published_text(name: str) -> str:
    _, place, micro_batch, micro_batches = PUBLISHED[name]
    return "all on the GPU, batch 2" if place == "device" else f"{micro_batch} x {micro_batches}, caches on {place}"


def _block_text(plan: Json | None) -> str:
    if plan is None:
        return "does not fit"
    block = f"{plan['micro_batch']} x {plan['micro_batches']}, caches on {plan['caches']}"
    on_disk = f", {plan['disk_share']:.0%} of the weights on disk" if plan["disk_share"] else ""
    rates = f"{plan['output_tokens_per_second']:.2f} ({plan['simulated_tokens_per_second']:.2f})"
    return f"{rates}: {block}{on_disk}; {WAITS[plan['bottleneck']]}"


WAITS = {
    "to_device": "link to the GPU",
    "read": "disk",
    "compute": "GPU",
    "to_host": "link to the host",
    "write": "disk",
}
"""What limits decoding, by lane."""


if __name__ == "__main__":
    if sys.argv[1:] == ["plans"]:
        plan()
    elif len(sys.argv) > 1:
        print(json.dumps(answered(Path(sys.argv[1]), sys.argv[2])))
    else:
        main()
