"""Decode steps that read only active neurons, without a GPU: time, memory and bytes; activity of a trained model.

The first part is an OPT with random weights, whose biases keep one neuron in fifteen active, in fp32 and on one thread;
each bundle runs in its own process. The second part is examples/distillation/sparse.py, with and without its penalty.
The tables go into docs/active-neurons.md.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.distillation import FOLDER, ROOT, SCRIPTS, prepare, run, trtkit
from benchmarks.measure import own_peak_memory_mib, seconds, summary, write, write_between
from trtkit.bundle.bundle import open_bundle
from trtkit.llm.execution import Call, ExecutionOptions, open_execution

Json = dict[str, Any]
HIDDEN, NEURONS, LAYERS, KEEP = 1024, 8192, 8, 1024
STEPS, PROMPT = 48, 16
WAYS = {"all rows": ("dense", 0), "active rows, mapped": ("sparse", 0), "active rows of 5 steps": ("sparse", 5)}
PENALTIES = (0, 5)
DOCS = ROOT / "docs/active-neurons.md"


def main() -> None:
    """Measure and write the results."""
    with tempfile.TemporaryDirectory() as folder:
        build(Path(folder))
        steps = {name: child(Path(folder) / bundle, resident) for name, (bundle, resident) in WAYS.items()}
    prepare()
    trained = {str(penalty): example(penalty) for penalty in PENALTIES}
    print(write("active_neurons", {"threads": 1, "steps": steps, "trained": trained}))
    write_between(DOCS, "steps", steps_table(steps))
    write_between(DOCS, "trained", trained_table(trained))


def build(folder: Path) -> None:
    """Write a model with random weights, and build it twice."""
    from transformers import OPTConfig, OPTForCausalLM

    torch.manual_seed(0)
    sizes = {"hidden_size": HIDDEN, "word_embed_proj_dim": HIDDEN, "ffn_dim": NEURONS, "num_hidden_layers": LAYERS}
    model = OPTForCausalLM(OPTConfig(**sizes, num_attention_heads=16, vocab_size=2048, max_position_embeddings=256))
    for name, weight in model.named_parameters():
        if weight.dim() > 1:
            torch.nn.init.normal_(weight, std=weight.shape[-1] ** -0.5)
        if name.endswith("fc1.bias"):
            torch.nn.init.constant_(weight, -1.5)
    model.save_pretrained(folder / "model")
    words = [sys.executable, "-m", "trtkit", "build", str(folder / "model"), "--precision", "fp32", "--quiet"]
    words += [
        "--set",
        "llm.max_batch_size=1",
        "--set",
        "llm.max_sequence_length=128",
        "--set",
        "llm.max_prefill_length=64",
    ]
    for name, more in (("dense", []), ("sparse", ["--set", f"llm.sparse_ffn.keep={KEEP}"])):
        subprocess.run([*words, *more, "-o", str(folder / name)], check=True, stdout=subprocess.DEVNULL)


def child(bundle: Path, resident: int) -> Json:
    """Return the figures of one bundle, measured in a child process."""
    words = [sys.executable, "-m", "benchmarks.active_neurons", str(bundle), str(resident)]
    answer = subprocess.run(words, check=True, capture_output=True, text=True)
    figures: Json = json.loads(answer.stdout.splitlines()[-1])
    print(bundle.name, figures, flush=True)
    return figures


def stepped(bundle: Path, resident: int) -> Json:
    """Return the seconds of decode steps, the process's peak memory, and the share of rows that a step reads."""
    torch.set_num_threads(1)
    how = ExecutionOptions(resident_tokens=resident or None)
    execution = open_execution(open_bundle(bundle), "auto", 1, how)
    generator = np.random.default_rng(1)
    ids = generator.integers(3, 2048, PROMPT + STEPS)
    times, one = [], np.ones(1, np.int64)
    for position in range(PROMPT + STEPS):  # token by token: a prefill would read all rows
        call = Call(0, ids[None, position : position + 1], position * one, one)
        if position == PROMPT and execution.calls.neurons is not None:
            execution.calls.neurons.reset()
            read_before = execution.calls.neurons.row_bytes
        times.append(seconds(partial(execution.forward, call)))
    figures: Json = {"step_s": summary(times[PROMPT:]), "peak_memory_mib": round(own_peak_memory_mib())}
    if (neurons := execution.calls.neurons) is not None:
        active, read, missed = neurons.values()
        figures |= {"active_share": active / (STEPS * LAYERS * NEURONS), "blocks_read": read, "blocks_missed": missed}
        figures["row_mib_per_step"] = round((neurons.row_bytes - read_before) / STEPS / 2**20, 2)
    else:
        figures["row_mib_per_step"] = LAYERS * NEURONS * HIDDEN * 4 / 2**20
    return figures


def example(penalty: int) -> Json:
    """Train the example, calibrate its active blocks on the training text, and evaluate the held-out text both ways."""
    out = f"sparse-{penalty}"
    log = FOLDER / f"{out}.log"
    if not log.is_file():
        log.write_text(run(sys.executable, SCRIPTS / "sparse.py", "train.txt", out, "--penalty", str(penalty)))
    calibrated = [
        "--set",
        "llm.sparse_ffn.calibration.data=train.txt",
        "--set",
        "llm.sparse_ffn.calibration.length=256",
    ]
    build = ["build", out, "--precision", "fp32", "--set", "llm.max_sequence_length=512", "--quiet"]
    for name, more in ((f"bundles/{out}", calibrated), (f"bundles/{out}-dense", [])):
        trtkit(*build, *more, "-o", name)
    eval_words = ["--perplexity", "held-out.txt", "--windows", "4", "--quiet"]
    sparse, dense = (trtkit("eval", f"bundles/{out}{end}", *eval_words) for end in ("", "-dense"))
    llm = open_bundle(FOLDER / "bundles" / out).manifest.config.llm
    assert llm is not None
    assert llm.sparse_ffn is not None
    assert isinstance(llm.sparse_ffn.keep, tuple)
    neurons, size = sparse["neurons"], 8 * 256
    tokens = sparse["tokens"] * len(llm.sparse_ffn.keep)
    return {
        "last_step": log.read_text().splitlines()[-1],
        "keep": list(llm.sparse_ffn.keep),
        "neurons": size,
        "active_share": neurons["active"] / (tokens * size),
        "missed_share": neurons["missed"] / neurons["active"],
        "perplexity": sparse["perplexity"],
        "dense_perplexity": dense["perplexity"],
    }


def steps_table(steps: Json) -> str:
    """Return the time, memory and bytes of a step as Markdown."""
    lines = ["| a step reads | time | rows read from the file | peak memory |", "| --- | --: | --: | --: |"]
    for name, row in steps.items():
        time = f"{1000 * row['step_s']['median']:.1f} ms"
        lines.append(f"| {name} | {time} | {row['row_mib_per_step']:.1f} MiB | {row['peak_memory_mib']} MiB |")
    return "\n".join(lines) + "\n"


def trained_table(trained: Json) -> str:
    """Return the penalty's effect as Markdown."""
    lines = ["| penalty | active neurons | kept, by layer | active, not kept | perplexity | of all neurons |"]
    lines.append("| --- | --: | --- | --: | --: | --: |")
    for penalty, row in trained.items():
        kept = ", ".join(f"{count / row['neurons']:.0%}" for count in row["keep"])
        shares = f"{row['active_share']:.1%} | {kept} | {row['missed_share']:.2%}"
        lines.append(f"| {penalty} | {shares} | {row['perplexity']:.2f} | {row['dense_perplexity']:.2f} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    if len(sys.argv) > 1:
        print(json.dumps(stepped(Path(sys.argv[1]), int(sys.argv[2]))))
    else:
        main()
