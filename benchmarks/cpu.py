"""How long commands take without a GPU, in CPU and wall seconds; decoding against the memory's bandwidth.

Each command runs in its own process, on EfficientNet-Lite0 and SmolLM2-135M; rounds are interleaved. `decode` is the
median step of one sequence on the reference executor, which reads all weights once; `read` is how long this machine
takes to read as many bytes, measured between steps.
"""

from __future__ import annotations

import gc
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from benchmarks.measure import interleaved, ratio, seconds, summary, write
from benchmarks.opening import cpu_seconds, picture
from trtkit import build
from trtkit.config.load import load_config
from trtkit.llm.execution import Call, ReferenceDecoder, config_network

if TYPE_CHECKING:
    from collections.abc import Sequence

ROUNDS, STEPS, CACHED, THREADS = 3, 40, 64, 2


def commands(vision: Path, language: Path) -> dict[str, list[str]]:
    """Return the command lines to time. vision, language: bundles."""
    return {
        "--help": ["--help"],
        "list": ["list"],
        "inspect": ["inspect", str(vision)],
        "plan": ["plan", str(language)],
        "simulate": ["simulate", str(language), "--gpu", "l4", "--rate", "5", "--requests", "200"],
        "run": ["run", str(vision), picture()],
        "verify (vision)": ["verify", str(vision)],
        "verify --layers (vision)": ["verify", str(vision), "--layers"],
        "build (vision)": ["build", "efficientnet-lite0", "--no-cache", "-o", str(vision)],
        "generate": ["generate", str(language), "The sky is", "--max-tokens", "20"],
        "verify (language)": ["verify", str(language)],
        "build (language)": ["build", "llama", "--no-cache", "-o", str(language)],
    }


def timed(words: Sequence[str]) -> tuple[float, float]:
    """Return the CPU seconds of a command and its children, and its wall seconds."""
    started = time.perf_counter()
    cpu_s = cpu_seconds([sys.executable, "-m", "trtkit", *words])
    return cpu_s, time.perf_counter() - started


def decoding(precision: str) -> dict[str, Any]:
    """Return the figures of decoding one sequence."""
    network = config_network(load_config("llama", [f"precision={precision}", "llm.max_batch_size=1"]), "tensorrt_rtx")
    decoders = {name: ReferenceDecoder(network, 1, is_fast=name == "fast") for name in ("fast", "layer_by_layer")}
    one = np.ones(1, np.int64)
    for decoder in decoders.values():
        decoder.forward(Call(0, np.full((1, CACHED), 1000), 0 * one, CACHED * one))
    weights = torch.ones(weight_bytes(network.layers) // 4)
    at = dict.fromkeys(decoders, CACHED)

    def step(name: str) -> float:
        call = Call(0, np.full((1, 1), 1000), at[name] * one, one)
        at[name] += 1
        return seconds(partial(decoders[name].forward, call))

    variants: dict[str, Any] = {name: partial(step, name) for name in decoders}
    samples = interleaved({**variants, "read": lambda: seconds(weights.sum)}, STEPS, warmups=3)
    figures = {name: summary(values) for name, values in samples.items()}
    shares = {f"{name}_share_of_bandwidth": ratio(samples["read"], samples[name]) for name in decoders}
    gc.collect()
    return {"weight_bytes": weights.nbytes, "step_s": figures, **shares}


def weight_bytes(layers: Any) -> int:
    """Return the bytes of a network's weights, counting shared memory once."""
    held = {weights.raw.ctypes.data: weights.raw.nbytes for node in layers.nodes for weights in node.weights.values()}
    return sum(held.values())


def main() -> None:
    """Measure and write the results."""
    torch.set_num_threads(THREADS)
    with torch.inference_mode():
        decode = {precision: decoding(precision) for precision in ("fp32", "bf16", "fp16")}
    with tempfile.TemporaryDirectory() as folder:
        vision, language = Path(folder, "vision"), Path(folder, "language")
        build(load_config("efficientnet-lite0"), vision)
        build(load_config("llama"), language)
        lines = commands(vision, language)
        samples = interleaved({name: partial(timed, words) for name, words in lines.items()}, ROUNDS)
    figures = {
        name: {"cpu_s": summary([cpu for cpu, _ in runs]), "wall_s": summary([wall for _, wall in runs])}
        for name, runs in samples.items()
    }
    print(write("cpu", {"threads": THREADS, "decode": decode, "commands": figures}))


if __name__ == "__main__":
    main()
