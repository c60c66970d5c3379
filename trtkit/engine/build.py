"""Build a bundle from a config: digest, prepare, compile, each in a child process, then one rename."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Literal

from trtkit.backends import choose_backend
from trtkit.config.targets import Target, load_target
from trtkit.engine import cache
from trtkit.engine.bundle import MANIFEST, NETWORK, Bundle, is_bundle, open_bundle, write_json
from trtkit.engine.child import ChildCrashError, run_job
from trtkit.engine.crash import explain_crash
from trtkit.engine.folder_lock import atomic_folder
from trtkit.engine.manifest import BackendRecord, BuildMetrics, FileRecord, IoRecord, Manifest, StepRecord
from trtkit.errors import BundleError, UnsupportedOperatorsError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from trtkit.config.schema import ModelConfig

Json = dict[str, Any]

# Beside the ONNX file, where it is too large to be one file.
NETWORK_DATA = "network/model.onnx.data"


@dataclass(frozen=True)
class BuildResult:
    """A finished build. origin: `built` now, `restored` from the cache, or `unchanged` where it already stood."""

    bundle: Bundle
    origin: Literal["built", "restored", "unchanged"]


@dataclass(frozen=True)
class Plan:
    """Everything a build follows from, known before it starts."""

    config: ModelConfig
    target: Target
    backend: str
    sources: tuple[FileRecord, ...]
    tools: dict[str, str]
    key: str


def plan_build(config: ModelConfig, on_event: Callable[[Json], None]) -> Plan:
    """Resolve target and backend and fingerprint the source."""
    target = load_target(config.target)
    backend = choose_backend(target.backend)
    files = run("digest", {"config": config.model_dump(mode="json")}, on_event)["files"]
    sources = tuple(FileRecord(**file) for file in files)
    tools = cache.tool_versions()
    return Plan(config, target, backend, sources, tools, cache.build_key(config, target, backend, sources, tools))


def build_bundle(
    config: ModelConfig, out: Path, on_event: Callable[[Json], None], *, use_cache: bool = True
) -> BuildResult:
    """Build `config` into the folder `out`, or find that it has been done.

    Raises TrtkitError where input, TensorRT or the disk does not allow it; `out` is then as it was.
    """
    plan = plan_build(config, on_event)
    if use_cache and (standing := _standing(plan, out)):
        return BuildResult(_adopted(standing, plan), "unchanged")
    with atomic_folder(out, replaces=MANIFEST) as folder:
        restored = use_cache and cache.restore(plan.key, folder)
        if not restored:
            _fill(plan, folder, on_event)
    bundle = _adopted(open_bundle(out), plan)
    if not restored and use_cache:
        cache.store(plan.key, out)
    return BuildResult(bundle, "restored" if restored else "built")


def prepare_network(plan: Plan, folder: Path, on_event: Callable[[Json], None]) -> tuple[Json, Json]:
    """Prepare the ONNX file in `folder`/network; return what `prepare` said and the arguments of parsing jobs."""
    network_folder = folder / "network"
    network_folder.mkdir()
    arguments = {"config": plan.config.model_dump(mode="json"), "folder": str(network_folder)}
    prepared = run("prepare", arguments, on_event)
    parse_arguments = {
        "backend": plan.backend,
        "onnx": str(network_folder / "model.onnx"),
        "grid_samples": prepared["grid_samples"],
        "opt_shapes": prepared["opt_shapes"],
    }
    return prepared, parse_arguments


def describe_network(plan: Plan, folder: Path, on_event: Callable[[Json], None]) -> tuple[Json, Json]:
    """Prepare and parse without building; return what `prepare` said and the network's record."""
    prepared, arguments = prepare_network(plan, folder, on_event)
    return prepared, _parse_job("describe", arguments, on_event)["network"]


def _fill(plan: Plan, folder: Path, on_event: Callable[[Json], None]) -> None:
    """Do the work in `folder`."""
    prepared, arguments = prepare_network(plan, folder, on_event)
    (folder / "engines").mkdir()
    engine = f"engines/{plan.config.name}.plan"
    arguments |= {
        "profiles": prepared["profiles"],
        "target": plan.target.model_dump(mode="json"),
        "options": plan.config.build.model_dump(mode="json"),
        "plan": str(folder / engine),
    }
    compiled = _parse_job("compile", arguments, on_event)
    write_json(folder / NETWORK, compiled["network"])
    manifest = _manifest(plan, prepared, compiled, FileRecord(path=engine, **compiled["plan"]), folder)
    write_json(folder / MANIFEST, manifest.model_dump(mode="json"))


def _parse_job(job: str, arguments: Json, on_event: Callable[[Json], None]) -> Json:
    """Run a job that parses; a refused model is asked for all of its faults, a crash for where it was."""
    try:
        return run(job, arguments, on_event)
    except UnsupportedOperatorsError as first:
        try:
            run("diagnose", arguments, on_event)
        except ChildCrashError:
            raise first from None
        raise


def run(job: str, arguments: Json, on_event: Callable[[Json], None]) -> Json:
    """Do a job in a child process; a crash becomes an error that says where it was."""
    try:
        return run_job(job, arguments, on_event)
    except ChildCrashError as crash:
        if job == "diagnose":
            raise
        raise explain_crash(crash, arguments) from None


def _standing(plan: Plan, out: Path) -> Bundle | None:
    """Return the bundle at `out` if it is the very one that this build would make."""
    if not is_bundle(out):
        return None
    try:
        bundle = open_bundle(out)
        if bundle.manifest.build_key != plan.key:
            return None
        bundle.check_files()
    except BundleError:
        return None
    return bundle


def _adopted(bundle: Bundle, plan: Plan) -> Bundle:
    """Return an earlier bundle with what the plan's config says that no build follows from.

    That is where the source lies, how inputs are made, what the outputs mean and how they are verified; a result of
    verifying something else is dropped.
    """
    asked = {"config": plan.config, "target": plan.target, "sources": plan.sources}
    if all(getattr(bundle.manifest, key) == value for key, value in asked.items()):
        return bundle
    manifest = bundle.manifest.model_copy(update={**asked, "verify": None})
    write_json(bundle.path / MANIFEST, manifest.model_dump(mode="json"))
    return Bundle(bundle.path, manifest)


def _manifest(plan: Plan, prepared: Json, compiled: Json, engine: FileRecord, folder: Path) -> Manifest:
    network = compiled["network"]
    prepare_s = round(sum(step["seconds"] for step in prepared["steps"]), 3)
    return Manifest(
        name=plan.config.name,
        created_at=datetime.now(UTC).isoformat(timespec="seconds"),
        build_key=plan.key,
        config=plan.config,
        target=plan.target,
        backend=BackendRecord(name=plan.backend, version=compiled["backend_version"]),
        tools=plan.tools,
        sources=plan.sources,
        steps=tuple(StepRecord(**step) for step in prepared["steps"]),
        inputs=tuple(IoRecord(**tensor) for tensor in network["inputs"]),
        outputs=tuple(IoRecord(**tensor) for tensor in network["outputs"]),
        profiles=tuple(prepared["profiles"]),
        network=_record(folder, "network/model.onnx"),
        network_data=_record(folder, NETWORK_DATA) if (folder / NETWORK_DATA).exists() else None,
        totals=network["totals"],
        engines=(engine,),
        warnings=tuple(compiled["warnings"]),
        metrics=BuildMetrics(prepare_s=prepare_s, **compiled["metrics"]),
    )


def _record(folder: Path, path: str) -> FileRecord:
    with (folder / path).open("rb") as file:
        sha256 = hashlib.file_digest(file, "sha256").hexdigest()
    return FileRecord(path=path, size_bytes=(folder / path).stat().st_size, sha256=sha256)
