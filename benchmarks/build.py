"""Time of `trtkit --help` against importing click, and of a bundle's build against a bare script on the same ONNX."""

from __future__ import annotations

import json
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.measure import interleaved, process, ratio, run_bare, summary, write
from trtkit.builder.build_inputs import gather_inputs
from trtkit.builder.jobs import BUILD_STAGE
from trtkit.builder.write_stages import prepare_stages, stage_request
from trtkit.config import load_config
from trtkit.jobs.json_form import to_json
from trtkit.jobs.runner import ChildRunner

if TYPE_CHECKING:
    from trtkit.builder.stages import StageResult

MODELS = ("efficientnet-lite0", "ppocr-det", "ppocr-rec", "vit")
REPEATS = 7


def help_figures() -> dict[str, Any]:
    """Time whole processes."""
    trtkit = str(Path(sys.executable).with_name("trtkit"))
    samples = interleaved(
        {
            "trtkit --help": lambda: process([trtkit, "--help"])["wall_s"],
            "import click": lambda: process([sys.executable, "-c", "import click"])["wall_s"],
        },
        repeats=21,
    )
    return {
        "seconds": {name: summary(values) for name, values in samples.items()},
        "ratio": ratio(samples["trtkit --help"], samples["import click"]),
    }


def build_figures(name: str) -> dict[str, Any]:
    """Build one model both ways, from the same prepared ONNX file."""
    with tempfile.TemporaryDirectory() as text:
        folder = Path(text)
        inputs = gather_inputs(load_config(name), ChildRunner())
        (stage,) = prepare_stages(inputs, folder, ChildRunner()).stages
        request = stage_request(inputs.config, inputs.target, inputs.backend, stage, folder)
        request = replace(request, plan=folder / "trtkit.plan")
        assert stage.onnx is not None
        bare = [sys.executable, "benchmarks/bare_build.py", str(stage.onnx.parsed), str(folder / "bare.plan")]
        samples = interleaved(
            {
                "trtkit": lambda: figures_of(ChildRunner().run(BUILD_STAGE, request)),
                "bare": lambda: run_bare([*bare, json.dumps(to_json(stage.profiles))]),
            },
            REPEATS,
        )
    return _compare(samples)


def figures_of(result: StageResult) -> dict[str, float]:
    """Return the seconds and memory of a stage's build."""
    assert result.plan is not None
    took = {"parse_s": result.write_s, "describe_s": result.describe_s, "build_s": result.plan.build_s}
    return took | {"peak_memory_mib": result.plan.peak_memory_mib}


def _compare(samples: dict[str, list[Any]]) -> dict[str, Any]:
    """Compare parse + build as the manifest states them. work: everything from the first parse to the written plan."""
    ours, bare = samples["trtkit"], samples["bare"]
    parse_build = [run["parse_s"] + run["build_s"] for run in ours]
    work = [run["parse_s"] + run["describe_s"] + run["build_s"] for run in ours]
    bare_work = [run["work_s"] for run in bare]
    memory, bare_memory = ([run["peak_memory_mib"] for run in runs] for runs in (ours, bare))
    return {
        "parse_and_build_s": {"trtkit": summary(parse_build), "bare": summary(bare_work)},
        "parse_and_build_ratio": ratio(parse_build, bare_work),
        "with_description_s": summary(work),
        "with_description_ratio": ratio(work, bare_work),
        "peak_memory_mib": {"trtkit": summary(memory), "bare": summary(bare_memory)},
        "peak_memory_ratio": ratio(memory, bare_memory),
    }


def main() -> None:
    """Measure and write the results."""
    figures = {"help": help_figures(), "build": {name: build_figures(name) for name in MODELS}}
    print(write("build", figures))
    print(f"--help: {figures['help']['ratio']}x of importing click")
    for name, result in figures["build"].items():
        time_ratio, with_description = result["parse_and_build_ratio"], result["with_description_ratio"]
        print(f"{name}: parse + build {time_ratio}x of a bare script, {with_description}x with description,", end=" ")
        print(f"peak memory {result['peak_memory_ratio']}x")


if __name__ == "__main__":
    main()
