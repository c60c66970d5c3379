"""Kernels of shipped models and the bytes that fusion saves, from `trtkit inspect --fusion`.

The table goes into docs/kernels.md. `python -m benchmarks.kernels`
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.measure import write, write_between
from trtkit.report.tables import size_text

Json = dict[str, Any]
ROOT = Path(__file__).parents[1]
MODELS = {
    "efficientnet-lite0, fp32": ("efficientnet-lite0",),
    "efficientnet-lite0, fp16": ("efficientnet-lite0", "--precision", "fp16"),
    "llama (SmolLM2-135M), fp16": ("llama",),
    "llama, int4_wo": ("llama", "--set", "quantize.method=int4_wo", "--set", "quantize.block=32", "--target", "sm80"),
}


def fusions(words: tuple[str, ...], folder: Path) -> list[Json]:
    """Build a bundle; return a row per profile of its engine."""
    trtkit = Path(sys.executable).with_name("trtkit")
    subprocess.run([trtkit, "build", *words, "-o", folder, "--quiet"], check=True, stdout=subprocess.DEVNULL)
    inspect: tuple[str | Path, ...] = (trtkit, "inspect", folder, "--fusion", "--json")
    ran = subprocess.run(inspect, check=True, stdout=subprocess.PIPE, text=True)
    return [
        {
            "phase": fusion["phase"],
            "shape": next(iter(fusion["shapes"].values())),
            "layers": fusion["layers"] - len(fusion["absent"]),
            "kernels": len(fusion["kernels"]),
            **{key: fusion[key] for key in ("bytes_apart", "bytes_saved", "generated_kernels", "confirmed_kernels")},
        }
        for fusion in json.loads(ran.stdout)["fusions"]
    ]


def table(figures: dict[str, list[Json]]) -> str:
    """Return the figures as Markdown."""
    lines = ["| | layers in kernels | kernels | bytes moved, layer by layer | saved by fusing |"]
    lines.append("| --- | --: | --: | --: | --: |")
    for name, rows in figures.items():
        for row in rows:
            batch, *rest = row["shape"]
            call = {"prefill": f"prefill of {batch} x {rest[0]} tokens", "decode": f"decode step of {batch} sequences"}
            words = f"{name}, {call.get(row['phase'], f'{batch} images')}"
            saved = f"{size_text(row['bytes_saved'])} ({row['bytes_saved'] / row['bytes_apart']:.0%})"
            lines.append(
                f"| {words} | {row['layers']} | {row['kernels']} | {size_text(row['bytes_apart'])} | {saved} |"
            )
    return "\n".join(lines) + "\n"


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="trtkit-") as folder:
        figures = {name: fusions(words, Path(folder) / str(at)) for at, (name, words) in enumerate(MODELS.items())}
    write("kernels", {"models": figures})
    write_between(ROOT / "docs/kernels.md", "kernels", table(figures))


if __name__ == "__main__":
    main()
