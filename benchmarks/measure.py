"""Measuring, for all benchmarks: interleaved repeats, medians, peak memory, results with provenance."""

from __future__ import annotations

import json
import os
import platform
import statistics
import subprocess
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trtkit.builder.cache import tool_versions

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

RESULTS = Path(__file__).parent / "results"


def interleaved(variants: Mapping[str, Callable[[], Any]], repeats: int, warmups: int = 1) -> dict[str, list[Any]]:
    """Call every variant in turn, `repeats` times over, after `warmups` uncounted rounds."""
    samples: dict[str, list[Any]] = {name: [] for name in variants}
    for round_index in range(warmups + repeats):
        for name, run in variants.items():
            value = run()
            if round_index >= warmups:
                samples[name].append(value)
    return samples


def seconds(run: Callable[[], Any]) -> float:
    """Return the wall time of one call."""
    started = time.perf_counter()
    run()
    return time.perf_counter() - started


def process(command: Sequence[str], environment: Mapping[str, str] | None = None) -> dict[str, float]:
    """Run a command; return its wall seconds and peak memory in MiB. Raises if it fails."""
    started = time.perf_counter()
    child = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=environment)
    _, status, usage = os.wait4(child.pid, 0)
    if status:
        raise RuntimeError(f"{command} failed with status {status}")
    return {"wall_s": time.perf_counter() - started, "peak_memory_mib": usage.ru_maxrss / 1024}


def run_bare(command: Sequence[str]) -> Any:
    """Run a bare script; return the figures in its last line of output, which follows TensorRT's log."""
    answer = subprocess.run(command, capture_output=True, check=True, text=True)
    return json.loads(answer.stdout.splitlines()[-1])


def summary(samples: Sequence[float]) -> dict[str, float]:
    """Return minimum, median, maximum and count."""
    return {
        "min": round(min(samples), 5),
        "median": round(statistics.median(samples), 5),
        "max": round(max(samples), 5),
        "repeats": len(samples),
    }


def ratio(numerator: Sequence[float], denominator: Sequence[float]) -> float:
    """Return the ratio of medians."""
    return round(statistics.median(numerator) / statistics.median(denominator), 3)


def own_peak_memory_mib() -> float:
    """Return this process's peak memory. (`getrusage` would include the parent's, which a fork inherits.)"""
    lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM:")) / 1024


def write(name: str, figures: dict[str, Any]) -> Path:
    """Write benchmarks/results/NAME.json with the machine and versions."""
    provenance = {
        "measured_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": f"python -m benchmarks.{name}",
        "machine": {"processor": _processor(), "cores": os.cpu_count(), "system": platform.system()},
        "versions": tool_versions(),
    }
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{name}.json"
    path.write_text(json.dumps({"provenance": provenance, **figures}, indent=1) + "\n")
    return path


def write_between(path: Path, mark: str, text: str) -> None:
    """Replace the text between `<!-- MARK -->` and `<!-- end of MARK -->` in a document."""
    first, last = f"<!-- {mark} -->", f"<!-- end of {mark} -->"
    before, _, rest = path.read_text(encoding="utf-8").partition(first)
    path.write_text(f"{before}{first}\n{text}{last}{rest.partition(last)[2]}", encoding="utf-8")


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor()
