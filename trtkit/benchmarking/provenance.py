"""Provenance of a measurement: software, machine, and whether the bundle was verified, which gives figures meaning."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import shlex
import shutil
import subprocess
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from trtkit.backends import list_gpus
from trtkit.benchmarking.report import BundleRecord, MeasuredMachine, Provenance
from trtkit.builder.cache import tool_versions
from trtkit.errors import BenchError

if TYPE_CHECKING:
    from trtkit.bundle.bundle import Bundle

_STATE = ("clocks.sm", "clocks.mem", "temperature.gpu", "power.draw", "clocks_throttle_reasons.active")


def verification(bundle: Bundle, *, is_waived: bool) -> str:
    """Describe how the bundle was verified. Raises BenchError if it was not, unless that is waived."""
    record = bundle.manifest.verify
    if record is not None and record.passed:
        return f"verified at {record.verified_at} against {record.reference}"
    failed = "" if record is None else f"the bundle did not pass verification: {record.verdict}"
    what = failed or "the bundle was never verified"
    if is_waived:
        return f"UNVERIFIED: {what}"
    fix = f"run `trtkit verify {shlex.quote(str(bundle.path))}`, or benchmark anyway with `--unverified`"
    raise BenchError(what, str(bundle.path), fix)


def bundle_record(bundle: Bundle, verified: str) -> BundleRecord:
    """Return the identity of a bundle. verified: how it was verified."""
    manifest = bundle.manifest
    return BundleRecord(
        path=str(bundle.path),
        name=manifest.name,
        build_key=manifest.build_key,
        precision=manifest.config.precision,
        backend=f"{manifest.backend.name} {manifest.backend.version}",
        target=manifest.target.name,
        verification=verified,
    )


def provenance(command: str) -> Provenance:
    """Return when, by which command, on which machine in which state, and with which versions a report is made."""
    versions = tool_versions() | _versions("numpy", "onnxruntime", "tritonclient")
    return Provenance(datetime.now(UTC).isoformat(timespec="seconds"), command, machine(), versions)


def machine() -> MeasuredMachine:
    """Return processor, cores, GPUs with clocks and temperature, threads, and the load before the measurement."""
    return MeasuredMachine(
        processor=_processor(),
        cores=os.cpu_count(),
        usable_cores=len(os.sched_getaffinity(0)),
        system=f"{platform.system()} {platform.release()}",
        load_average=tuple(round(value, 2) for value in os.getloadavg()),
        torch_threads=_torch_threads(),
        gpus=list_gpus(),
        gpu_state=gpu_state(),
    )


def gpu_state() -> tuple[dict[str, str], ...]:
    """Return clocks (MHz), temperature (Celsius), power (W) and throttling reasons of each GPU; empty without GPUs."""
    command = shutil.which("nvidia-smi")
    if command is None:
        return ()
    query = [command, f"--query-gpu={','.join(_STATE)}", "--format=csv,noheader,nounits"]
    try:
        answer = subprocess.run(query, capture_output=True, text=True, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ()
    rows = [[value.strip() for value in line.split(",")] for line in answer.stdout.splitlines()]
    return tuple(dict(zip(_STATE, row, strict=True)) for row in rows if len(row) == len(_STATE))


def _torch_threads() -> int:
    import torch

    return torch.get_num_threads()


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(named, platform.processor())


def _versions(*packages: str) -> dict[str, str]:
    versions = {}
    for package in packages:
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return versions
