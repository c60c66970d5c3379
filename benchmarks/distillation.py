"""SmolLM2 compressed by the scripts of examples/distillation, with and without training: perplexity and size.

Checkpoints are kept in the cache folder and reused. The tables go into docs/distillation.md.
`python -m benchmarks.distillation [VARIANT...]` measures only some variants again.
"""

from __future__ import annotations

import json
import math
import os
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

from benchmarks.measure import RESULTS, write, write_between
from benchmarks.quantize_llm import CALIBRATION, texts
from trtkit.bundle.bundle import open_bundle
from trtkit.files import cache_folder

Json = dict[str, Any]
ROOT = Path(__file__).parents[1]
SCRIPTS = ROOT / "examples/distillation"
FOLDER = cache_folder().parent / "trtkit-benchmarks" / "distillation"
STEPS = (0, 64)
RATE = "3e-4"
VARIANTS: dict[str, tuple[str, ...]] = {
    "int4": ("quantize.py",),
    "24 of 30 layers": ("prune.py", "--layers", "24"),
    "1024 of 1536 channels": ("prune.py", "--intermediate-size", "1024"),
    "2 of 3 key/value heads": ("prune.py", "--key-value-heads", "2"),
}


def run(*words: str | Path) -> str:
    """Run a command in the cache folder on one thread; return its output."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    ran = subprocess.run(words, cwd=FOLDER, env=environment, check=True, stdout=subprocess.PIPE, text=True)
    return ran.stdout


def trtkit(*words: str) -> Json:
    """Run a trtkit command; return its JSON result."""
    found: Json = json.loads(run(Path(sys.executable).with_name("trtkit"), *words, "--json"))
    return found


def prepare() -> None:
    """Write the texts: Python's documentation in two parts, and another text that no model is trained on."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    run(sys.executable, SCRIPTS / "texts.py")
    (FOLDER / "kjv.txt").write_text(texts()["KJV"][CALIBRATION], encoding="utf-8")


def checkpoint(name: str, steps: int) -> tuple[str, Json]:
    """Return a variant's checkpoint, and the cost of making it if it did not exist yet."""
    out = f"{name.replace(' ', '-').replace('/', '-')}-{steps}"
    log = FOLDER / f"{out}.json"
    if not log.is_file():
        script, *keep = VARIANTS[name]
        rate = ("--steps", str(steps), "--learning-rate", RATE)
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        printed = run(sys.executable, SCRIPTS / script, "llama", "train.txt", out, *rate, *keep)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        losses = [line for line in printed.splitlines() if line.startswith("step ")]
        log.write_text(json.dumps({"cpu_minutes": round(cpu_s / 60, 1), "log": losses}))
    return out, json.loads(log.read_text())


def measure(source: str) -> Json:
    """Build a checkpoint, or the original if empty, in fp16 and verify it; return its perplexities and sizes."""
    bundle = f"bundles/{source or 'original'}"
    words = (("--set", f"source.hf={source}") if source else ()) + (("--target", "sm80") if "int4" in source else ())
    trtkit("build", "llama", *words, "-o", bundle)
    opened = open_bundle(FOLDER / bundle)
    decoder = opened.manifest.decoder
    assert decoder is not None
    read = {text: trtkit("eval", bundle, "--perplexity", f"{text}.txt") for text in ("held-out", "kjv")}
    return {
        "bundle": bundle,
        "is_verified": trtkit("verify", bundle)["passed"],
        "perplexity": {text: round(evaluation["perplexity"], 3) for text, evaluation in read.items()},
        "weights_mib": round(decoder.weight_bytes / 2**20, 1),
        "engine_mib": round(opened.engine_path().stat().st_size / 2**20, 1),
        "kv_kib_per_token": decoder.kv_bytes_per_token / 1024,
    }


def table(figures: Json) -> str:
    """Return the figures as Markdown. regained: the share of the loss in nats from compression that training undid."""
    texts_of = {"held-out": "held-out", "kjv": "KJV"}
    heads = ["", "steps", *(word for text in texts_of.values() for word in (text, "regained"))]
    heads += ["weights", "engine", "KV of a token"]
    lines = [f"| {' | '.join(heads)} |", "| --- |" + " --: |" * (len(heads) - 1)]
    base = figures["original"]["perplexity"]
    untrained = {row["name"]: row["perplexity"] for row in figures.values() if row["steps"] == "0"}
    for row in figures.values():
        losses = []
        for text in texts_of:
            now, before = row["perplexity"][text], untrained.get(row["name"], base)[text]
            losses.append(f"{now:.2f} ({now / base[text] - 1:+.0%})" if row["steps"] else f"{now:.2f}")
            is_trained = row["steps"] not in ("", "0")
            losses.append(f"{math.log(before / now) / math.log(before / base[text]):.0%}" if is_trained else "")
        sizes = [f"{row['weights_mib']} MiB", f"{row['engine_mib']} MiB", f"{row['kv_kib_per_token']:.1f} KiB"]
        lines.append(f"| {' | '.join([row['name'], row['steps'], *losses, *sizes])} |")
    return "\n".join(lines) + "\n"


def main(names: list[str]) -> None:
    path = RESULTS / "distillation.json"
    figures: Json = json.loads(path.read_text())["variants"] if path.is_file() and names else {}
    prepare()
    figures.setdefault("original", {"name": "original, fp16", "steps": "", **measure("")})
    for name in names or VARIANTS:
        for steps in STEPS:
            source, made = checkpoint(name, steps)
            figures[source] = {"name": name, "steps": str(steps), **made, **measure(source)}
            print(source, figures[source], flush=True)
    write("distillation", {"variants": figures})
    write_between(ROOT / "docs/distillation.md", "distillation", table(figures))


if __name__ == "__main__":
    main(sys.argv[1:])
