"""Decoding SmolLM2-135M without a GPU, by type of weights: seconds per step, and memory after opening.

Each network runs in its own process on one thread: the fast path against layer by layer execution, and `read`, how long
this machine takes to read as many bytes as the network's weights have, in the same turns.
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

from benchmarks.cpu import weight_bytes
from benchmarks.measure import interleaved, ratio, seconds, summary, write
from trtkit.config.load import load_config
from trtkit.llm.execution import Call, ReferenceDecoder, config_network

METHODS = ("none", "int8_wo", "int4_wo")
STEPS, CACHED, PROMPT = 40, 64, 64


def main() -> None:
    """Measure and write the results."""
    figures: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        for method in METHODS:
            source = "" if method == "none" else f"source.hf={folder}/{method}"
            if source:
                words = ["quantize", "llama", "--method", method, "-o", f"{folder}/{method}"]
                subprocess.run([sys.executable, "-m", "trtkit", *words], check=True, stdout=subprocess.DEVNULL)
            for precision in ("fp32", "fp16", "bf16"):
                words = [sys.executable, "-m", "benchmarks.quantized_decode", precision, source]
                answer = subprocess.run(words, check=True, capture_output=True, text=True)
                figures.setdefault(method, {})[precision] = json.loads(answer.stdout.splitlines()[-1])
                print(method, precision, figures[method][precision], flush=True)
    print(write("quantized_decode", {"threads": 1, "weights": figures}))


def decoding(precision: str, source: str) -> dict[str, Any]:
    """Return the figures of one network."""
    sets = [f"precision={precision}", "llm.max_batch_size=1", *([source] if source else [])]
    network = config_network(load_config("llama", sets), "tensorrt_rtx")
    decoders, memory_mib = {}, {}
    for name in ("fast", "layer_by_layer"):
        before = _memory_mib()
        decoders[name] = ReferenceDecoder(network, 1, is_fast=name == "fast")
        decoders[name].forward(_call(0, CACHED))
        decoders[name].forward(_call(CACHED, 1))
        memory_mib[name] = round(_memory_mib() - before)
    size = weight_bytes(network.layers)
    numbers, at = torch.ones(size // 4), dict.fromkeys(decoders, CACHED + 1)

    def step(name: str) -> float:
        at[name] += 1
        return seconds(partial(decoders[name].forward, _call(at[name] - 1, 1)))

    steps: dict[str, Any] = {name: partial(step, name) for name in decoders}
    samples = interleaved({**steps, "read": lambda: seconds(numbers.sum)}, STEPS, warmups=3)
    prompts = {name: partial(seconds, partial(decoder.forward, _call(0, PROMPT))) for name, decoder in decoders.items()}
    prompt_samples = interleaved(prompts, 5)
    return {
        "weight_bytes": size,
        "opened_memory_mib": memory_mib,
        "step_s": {name: summary(values) for name, values in samples.items()},
        "prompt_s": {name: summary(values) for name, values in prompt_samples.items()},
        "time_ratio": ratio(samples["fast"], samples["layer_by_layer"]),
        "share_of_bandwidth": ratio(samples["read"], samples["fast"]),
    }


def _call(start: int, count: int) -> Call:
    one = np.ones(1, np.int64)
    return Call(0, np.full((1, count), 1000), start * one, count * one)


def _memory_mib() -> float:
    """Return this process's memory, without pages mapped from files."""
    lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("RssAnon:")) / 1024


if __name__ == "__main__":
    if len(sys.argv) > 1:
        torch.set_num_threads(1)
        with torch.inference_mode():
            print(json.dumps(decoding(*sys.argv[1:])))
    else:
        main()
