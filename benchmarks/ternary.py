"""A BitNet b1.58 and its full-precision twin, trained by examples/distillation/ternary.py: perplexity and bytes.

Checkpoints are kept in the cache folder and reused. The tables go into docs/distillation.md.
"""

from __future__ import annotations

import json
import math
import resource
import shutil
import sys
from typing import TYPE_CHECKING, Any

import gguf
import numpy as np
from safetensors.numpy import load_file

from benchmarks.distillation import FOLDER, ROOT, SCRIPTS, run, trtkit
from benchmarks.measure import write, write_between
from trtkit.bundle.bundle import open_bundle
from trtkit.quantized_matrix import QuantizedMatrix
from trtkit.sources.decoder_source import open_hf_folder

if TYPE_CHECKING:
    from trtkit.arrays import Array

Json = dict[str, Any]
TERNARY, TWIN, ROUNDED = "ternary", "ternary-twin", "ternary-twin-rounded"
ONLINE = {"quant_method": "bitnet", "linear_class": "autobitlinear", "quantization_mode": "online"}
BUILD = ("--precision", "fp16", "--target", "sm80", "--set", "llm.max_sequence_length=512")
INT4 = ("--set", "quantize.method=int4_wo", "--set", "quantize.block=128")
VARIANTS: dict[str, tuple[str, tuple[str, ...]]] = {
    "full precision, fp16": (TWIN, ()),
    "full precision, then `int4_wo`": (TWIN, INT4),
    "full precision, then ternary": (ROUNDED, ()),
    "trained ternary": (TERNARY, ()),
}
"""By variant: checkpoint, and arguments of `trtkit build`."""
GGUF = {"GGUF TQ2_0": gguf.GGMLQuantizationType.TQ2_0, "GGUF TQ1_0": gguf.GGMLQuantizationType.TQ1_0}


def train(out: str, *words: str) -> Json:
    """Train a checkpoint unless it exists; return the training's figures."""
    log = FOLDER / f"{out}.json"
    if not log.is_file():
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        printed = run(sys.executable, SCRIPTS / "ternary.py", "train.txt", out, *words)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        steps = [line for line in printed.splitlines() if line.startswith("step ")]
        log.write_text(json.dumps({"cpu_minutes": round(cpu_s / 60, 1), "log": [*steps[:-1:10], steps[-1]]}))
    taken: Json = json.loads(log.read_text())
    return taken


def round_twin() -> None:
    """Mark the twin's checkpoint so that readers round its weights and inputs, as in the ternary model."""
    shutil.copytree(FOLDER / TWIN, FOLDER / ROUNDED, dirs_exist_ok=True)
    path = FOLDER / ROUNDED / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"quantization_config": ONLINE}))


def measure(name: str) -> Json:
    """Build a variant in fp16 and verify it; return its perplexity and sizes."""
    source, words = VARIANTS[name]
    bundle = f"bundles/{source}{'-int4' if words else ''}"
    trtkit("build", source, *words, *BUILD, "-o", bundle)
    opened = open_bundle(FOLDER / bundle)
    assert opened.manifest.decoder is not None
    return {
        "is_verified": trtkit("verify", bundle)["passed"],
        "perplexity": round(trtkit("eval", bundle, "--perplexity", "held-out.txt", "--windows", "0")["perplexity"], 3),
        "weights_bytes": opened.manifest.decoder.weight_bytes,
        "engine_bytes": opened.engine_path().stat().st_size,
    }


def storage() -> Json:
    """Return the bytes of the ternary matrices in each format, all of which represent them exactly."""
    checkpoint = open_hf_folder(FOLDER / TERNARY).checkpoint
    matrices = [each for each in map(checkpoint.__getitem__, checkpoint) if isinstance(each, QuantizedMatrix)]
    weights = [matrix.weights() for matrix in matrices]
    count = sum(weight.size for weight in weights)
    packed = load_file(FOLDER / TERNARY / "model.safetensors")
    sizes = {
        "fp16": 2 * count,
        "int4 in the engine": sum(each.codes.nbytes + 2 * each.scales.size for each in matrices),
        **{name: sum(gguf_bytes(weight, kind) for weight in weights) for name, kind in GGUF.items()},
        "`bitnet` checkpoint": sum(
            array.nbytes for name, array in packed.items() if array.dtype == np.uint8 or name.endswith("_scale")
        ),
        "ideal, log2(3) bits": math.ceil(count * math.log2(3) / 8),
    }
    zeros = sum(np.count_nonzero(weight == 0) for weight in weights)
    ordered = dict(sorted(sizes.items(), key=lambda item: -item[1]))
    return {"weights": count, "zeros": round(float(zeros / count), 4), "bytes": ordered}


def gguf_bytes(weight: Array, kind: gguf.GGMLQuantizationType) -> int:
    """Return the bytes of a ternary matrix in GGUF."""
    stored = gguf.quants.quantize(weight, kind)
    assert (np.sign(gguf.quants.dequantize(stored, kind)) == np.sign(weight)).all()
    return int(stored.nbytes)


def models_table(figures: Json) -> str:
    """Return perplexities and sizes as Markdown."""
    heads = ["", "held-out", "weights", "engine"]
    lines = [f"| {' | '.join(heads)} |", "| --- |" + " --: |" * (len(heads) - 1)]
    base = next(iter(figures.values()))["perplexity"]
    for name, row in figures.items():
        change = f" ({row['perplexity'] / base - 1:+.1%})" if row["perplexity"] != base else ""
        sizes = [f"{row[key] / 2**20:.1f} MiB" for key in ("weights_bytes", "engine_bytes")]
        lines.append(f"| {name} | {row['perplexity']:.1f}{change} | {' | '.join(sizes)} |")
    return "\n".join(lines) + "\n"


def storage_table(stored: Json) -> str:
    """Return bytes by format as Markdown."""
    lines = ["| linear layers, ternary, as | bits per weight | size |", "| --- | --: | --: |"]
    for name, size in stored["bytes"].items():
        lines.append(f"| {name} | {8 * size / stored['weights']:.2f} | {size / 2**20:.2f} MiB |")
    return "\n".join(lines) + "\n"


def report(training: Json, models: Json) -> None:
    """Write results and tables."""
    stored = storage()
    write("ternary", {"training": training, "models": models, "storage": stored})
    page = ROOT / "docs/distillation.md"
    write_between(page, "ternary models", models_table(models))
    write_between(page, "ternary storage", storage_table(stored))


def main() -> None:
    FOLDER.mkdir(parents=True, exist_ok=True)
    run(sys.executable, SCRIPTS / "texts.py")
    training = {TERNARY: train(TERNARY), TWIN: train(TWIN, "--full-precision")}
    round_twin()
    models = {}
    for name in VARIANTS:
        models[name] = measure(name)
        print(name, models[name], flush=True)
    report(training, models)


if __name__ == "__main__":
    main()
