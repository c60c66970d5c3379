"""`trtkit bench` of three models against torch, ONNX Runtime and transformers: `python -m benchmarks.bench`.

Writes benchmarks/results/bench/ and the table in docs/benchmarking-figures.md. `--prepare` only builds and verifies, so
that measuring can follow on a quiet machine.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.measure import RESULTS
from trtkit.bundle.bundle import is_bundle, open_bundle
from trtkit.files import cache_folder

if TYPE_CHECKING:
    from collections.abc import Iterator

Json = dict[str, Any]
ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs" / "benchmarking-figures.md"
START, END = "<!-- figures: python -m benchmarks.bench -->", "<!-- end of figures -->"
_RESNET = """\
source:
  torch: {factory: benchmarks.resnet50:resnet50, inputs: {images: {shape: [batch, 3, 224, 224]}}, outputs: [logits]}
profiles:
  - batch: [1, 1, 4]
"""
_VISION = ("--batch", "1", "--compare", "torch", "--compare", "onnxruntime", "--min-runs", "40", "--max-seconds", "25")
_LOAD = ("--input-len", "64", "--output-len", "16", "--requests", "4", "--rounds", "3")


@dataclass(frozen=True)
class Case:
    """A model and how it is measured. metrics: the table's, by their names in the report."""

    name: str
    config: str
    overrides: tuple[str, ...]
    words: tuple[str, ...]
    metrics: tuple[str, ...]


CASES = (
    Case("efficientnet-lite0", "efficientnet-lite0", (), _VISION, ("latency",)),
    Case("resnet50", "resnet50.yaml", (), _VISION, ("latency",)),
    Case(
        "smollm2",
        "llama",
        ("precision=bf16",),
        ("--concurrency", "1,4", "--compare", "transformers", *_LOAD),
        ("time_to_first_token", "inter_token_latency"),
    ),
)


def main() -> None:
    """Build and verify missing bundles, measure, and write the results and the table."""
    folder = cache_folder().parent / "trtkit-benchmarks" / "bench"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "resnet50.yaml").write_text(_RESNET, encoding="utf-8")
    for case in CASES:
        _prepare(case, folder)
    if "--prepare" in sys.argv:
        return
    for case in CASES:
        _trtkit(folder, "bench", case.name, *case.words, "--save", f"{case.name}.json")
        shutil.copyfile(folder / f"{case.name}.json", RESULTS / "bench" / f"{case.name}.json")
    write_table()


def _prepare(case: Case, folder: Path) -> None:
    """Build and verify a bundle unless that was done."""
    sets = [word for override in case.overrides for word in ("--set", override)]
    _trtkit(folder, "build", case.config, "-o", case.name, *sets)
    bundle = folder / case.name
    assert is_bundle(bundle)
    if open_bundle(bundle).manifest.verify is None:
        _trtkit(folder, "verify", case.name)


def _trtkit(folder: Path, *words: str) -> None:
    """Run a trtkit command in `folder`. Raises if it fails."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    subprocess.run([Path(sys.executable).with_name("trtkit"), *words, "-q"], cwd=folder, env=environment, check=True)


def write_table() -> None:
    """Write the table of results between the page's marks."""
    before, start, rest = DOCS.read_text(encoding="utf-8").partition(START)
    _, end, after = rest.partition(END)
    assert start, DOCS
    assert end, DOCS
    DOCS.write_text(f"{before}{START}\n{table()}{END}{after}", encoding="utf-8")


def table() -> str:
    """Return the results as a Markdown table, with the machine they were measured on."""
    reports = {case: json.loads((RESULTS / "bench" / f"{case.name}.json").read_text("utf-8")) for case in CASES}
    lines = ["| model | computes | metric | p50 | at best | reached | trtkit takes (95 %) |", "| --- " * 7 + "|"]
    for case, report in reports.items():
        lines += [line for each in report["cases"] for line in _rows(case, each)]
    said = [f"- {case.name}: {_measured_on(report)}" for case, report in reports.items()]
    return "\n".join([*lines, "", *said]) + "\n"


def _rows(case: Case, found: Json) -> Iterator[str]:
    ratios = {(each["denominator"], each["metric"]): each for each in found["ratios"]}
    for result in found["results"]:
        for metric in case.metrics:
            each, against = result["metrics"][metric], result.get("ceilings", {}).get(metric)
            best = ("", "") if against is None else (f"{against['ceiling']:.1f} ms", f"{against['reached']:.0%}")
            ratio = ratios.get((result["contender"], metric))
            taken = f"{ratio['ratio']:.2f} ({ratio['low']:.2f} to {ratio['high']:.2f})" if ratio else ""
            cells = (f"{case.name}, {found['name']}", result["computes"], metric, f"{each['p50']:.1f} ms", *best, taken)
            yield f"| {' | '.join(cells)} |"


def _measured_on(report: Json) -> str:
    about, machine = report["provenance"], report["provenance"]["machine"]
    where = f"{machine['processor']}, {machine['usable_cores']} cores, load {machine['load_average'][0]}"
    return f"{about['measured_at'][:10]}, {where}; ceiling {report['ceiling']['said']}"


if __name__ == "__main__":
    main()
