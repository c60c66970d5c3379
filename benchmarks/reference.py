"""The reference executor against torch eager and ONNX Runtime on the CPU: wall time of a run, peak memory."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.measure import interleaved, ratio, summary, write
from benchmarks.reference_run import THREADS
from trtkit.builder.build_inputs import gather_inputs
from trtkit.builder.write_stages import prepare_stages
from trtkit.config import load_config
from trtkit.config.schema import ModelConfig
from trtkit.jobs.runner import ChildRunner

ROUNDS = 5

_RESNET50 = {
    "name": "resnet50",
    "source": {
        "torch": {
            "factory": "benchmarks.resnet50:resnet50",
            "inputs": {"images": {"shape": ["batch", 3, 224, 224]}},
            "outputs": ["logits"],
        }
    },
}


@dataclass(frozen=True)
class Case:
    """A model and its input shape. PP-OCR has no torch module, so torch cannot run it."""

    config: ModelConfig
    shape: tuple[int, ...]

    @property
    def runtimes(self) -> tuple[str, ...]:
        return ("trtkit", "layer_by_layer", "onnxruntime", *(["torch"] if self.config.source.torch else []))


def cases() -> list[Case]:
    return [
        Case(ModelConfig.model_validate(_RESNET50), (8, 3, 224, 224)),
        Case(load_config("efficientnet-lite0"), (8, 3, 224, 224)),
        Case(load_config("ppocr-det"), (1, 3, 736, 736)),
    ]


def figures_of(case: Case) -> dict[str, Any]:
    """Run all runtimes in turn, each time in a new process, on the ONNX file that TensorRT parses."""
    with tempfile.TemporaryDirectory() as folder:
        inputs = gather_inputs(case.config, ChildRunner())
        (stage,) = prepare_stages(inputs, Path(folder), ChildRunner()).stages
        assert stage.onnx is not None
        source = case.config.source.torch
        described = json.dumps(source.model_dump(mode="json") if source else None)
        words = [str(stage.onnx.path), json.dumps(case.shape), described]
        samples = interleaved({name: partial(_run, name, words) for name in case.runtimes}, ROUNDS, warmups=0)
    return {"input": list(case.shape), **_compare(samples)}


def _run(runtime: str, words: list[str]) -> Any:
    """Run one process; return the figures in its last line of output, which follows TensorRT's log."""
    command = [sys.executable, "-m", "benchmarks.reference_run", runtime, *words]
    answer = subprocess.run(command, capture_output=True, check=True, text=True)
    return json.loads(answer.stdout.splitlines()[-1])


def _compare(samples: dict[str, list[Any]]) -> dict[str, Any]:
    """Return each runtime's figures, and the reference executor's ratios to the others."""
    run_s, loaded, peak = (
        {name: [run[key] for run in runs] for name, runs in samples.items()}
        for key in ("run_s", "loaded_mib", "peak_memory_mib")
    )
    others = [name for name in samples if name != "trtkit"]
    return {
        "run_s": {name: summary(values) for name, values in run_s.items()},
        "loaded_mib": {name: summary(values) for name, values in loaded.items()},
        "peak_memory_mib": {name: summary(values) for name, values in peak.items()},
        "time_ratio": {name: ratio(run_s["trtkit"], run_s[name]) for name in others},
        "peak_memory_ratio": {name: ratio(peak["trtkit"], peak[name]) for name in others},
    }


def main() -> None:
    """Measure and write the results."""
    figures = {case.config.name: figures_of(case) for case in cases()}
    print(write("reference", {"threads": THREADS, "models": figures}))
    for name, result in figures.items():
        for other, time_ratio in result["time_ratio"].items():
            print(f"{name}: {time_ratio}x the time and {result['peak_memory_ratio'][other]}x the memory of {other}")


if __name__ == "__main__":
    main()
