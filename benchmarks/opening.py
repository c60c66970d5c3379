"""CPU seconds from a command's start to its first answer, and the share of opening a bundle.

Models: SmolLM2-135M from a 4-bit GGUF file, and EfficientNet-Lite0. `torch` is the import of torch, which every command
needs. `read` opens the layers in the bundle; `written` writes the same network from the model's source.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.measure import interleaved, ratio, summary, write
from trtkit import build, load_config
from trtkit.bundle.bundle import open_bundle
from trtkit.llm.execution.network import bundle_network, written_network

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

REPEATS = 5


def main() -> None:
    """Measure in one run, and write the results."""
    with tempfile.TemporaryDirectory() as folder:
        language, vision = Path(folder, "llama"), Path(folder, "efficientnet")
        build(load_config("llama"), language)
        build(load_config("efficientnet-lite0"), vision)
        command = [sys.executable, "-m", "trtkit"]
        samples = interleaved(
            {
                "torch": lambda: cpu_seconds([sys.executable, "-c", "import torch"]),
                "generate": lambda: cpu_seconds(
                    [*command, "generate", str(language), "The sky is", "--max-tokens", "1", "--runtime", "reference"]
                ),
                "run": lambda: cpu_seconds([*command, "run", str(vision), picture(), "--runtime", "reference"]),
                "read": lambda: used(lambda: bundle_network(open_bundle(language))),
                "written": lambda: used(lambda: written_network(open_bundle(language))),
            },
            REPEATS,
        )
    figures = {name: summary(values) for name, values in samples.items()}
    write("opening", {"cpu_seconds": figures, "read_to_written": ratio(samples["read"], samples["written"])})
    for name, values in figures.items():
        print(f"{name}: {values['median']:.2f} s of CPU")


def cpu_seconds(command: Sequence[str]) -> float:
    """Return the user and system time of a command and its children."""
    before = os.times()
    subprocess.run(command, check=True, capture_output=True)
    after = os.times()
    return after.children_user - before.children_user + after.children_system - before.children_system


def used(work: Callable[[], object]) -> float:
    """Return the CPU time that `work` takes in this process."""
    before = os.times()
    work()
    after = os.times()
    return after.user - before.user + after.system - before.system


def picture() -> str:
    spec = importlib.util.find_spec("skimage")
    assert spec is not None
    assert spec.origin is not None
    return str(Path(spec.origin).parent / "data" / "astronaut.png")


if __name__ == "__main__":
    main()
