"""Build a bundle from a config: plan, make the network, compile, then one rename."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Literal

from trtkit.bundle.bundle import MANIFEST, NETWORK, QUANTIZED, Bundle, is_bundle, open_bundle, write_json
from trtkit.bundle.folder_lock import atomic_folder
from trtkit.bundle.manifest import (
    BackendRecord,
    BuildMetrics,
    FileRecord,
    HybridRecord,
    IoRecord,
    Manifest,
    StepRecord,
    VisionRecord,
)
from trtkit.engine import cache
from trtkit.engine.decoder_build import compile_decoder, describe_decoder
from trtkit.engine.embeddings import EMBEDDINGS
from trtkit.engine.hybrid_build import compile_hybrid, describe_hybrid
from trtkit.engine.onnx_build import compile_onnx, describe_onnx
from trtkit.engine.plan import Plan, plan_build
from trtkit.engine.vision_language_build import compile_vision_language, describe_vision_language
from trtkit.errors import BundleError
from trtkit.jobs.json_form import to_json
from trtkit.sources.digest import sha256_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from trtkit.config.schema import ModelConfig
    from trtkit.jobs.runner import Runner

Json = dict[str, Any]


@dataclass(frozen=True)
class BuildResult:
    """A finished build. origin: `built` now, `restored` from the cache, or `unchanged` where it already stood."""

    bundle: Bundle
    origin: Literal["built", "restored", "unchanged"]


def build_bundle(config: ModelConfig, out: Path, runner: Runner, *, use_cache: bool = True) -> BuildResult:
    """Build `config` into the folder `out`, or find that it has been done.

    Raises TrtkitError where input, TensorRT or the disk does not allow it; `out` is then as it was.
    """
    plan = plan_build(config, runner)
    if use_cache and (standing := _standing(plan, out)):
        return BuildResult(_adopted(standing, plan), "unchanged")
    with atomic_folder(out, replaces=MANIFEST) as folder:
        restored = use_cache and cache.restore(plan.key, folder)
        if not restored:
            _fill(plan, folder, runner)
    bundle = _adopted(open_bundle(out), plan)
    if not restored and use_cache:
        cache.store(plan.key, out)
    return BuildResult(bundle, "restored" if restored else "built")


def describe_network(plan: Plan, folder: Path, runner: Runner) -> Json:
    """Make the network without building it; return its steps, profiles and record."""
    if plan.is_hybrid:
        return describe_hybrid(plan, folder, runner)
    if plan.takes_images:
        return describe_vision_language(plan, folder, runner)
    return (describe_decoder if plan.is_decoder else describe_onnx)(plan, folder, runner)


def _fill(plan: Plan, folder: Path, runner: Runner) -> None:
    """Do the work in `folder`."""
    (folder / "engines").mkdir()
    engine = f"engines/{plan.config.name}.plan"
    compiled = _compiler(plan)(plan, folder, engine, runner)
    write_json(folder / NETWORK, compiled["network"].to_json())
    engines = compiled["engines"] if "engines" in compiled else [{"path": engine, **compiled["plan"]}]
    manifest = _manifest(plan, compiled, tuple(FileRecord(**record) for record in engines), folder)
    manifest = manifest.model_copy(update={"files": _other_files(Bundle(folder, manifest))})
    write_json(folder / MANIFEST, manifest.model_dump(mode="json"))


def _compiler(plan: Plan) -> Callable[..., Json]:
    """Return what builds a plan's kind of model."""
    if plan.is_hybrid or plan.takes_images:
        return compile_hybrid if plan.is_hybrid else compile_vision_language
    return compile_decoder if plan.is_decoder else compile_onnx


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


def _manifest(plan: Plan, compiled: Json, engines: tuple[FileRecord, ...], folder: Path) -> Manifest:
    network = compiled["network"]
    prepare_s = round(sum(step.seconds for step in compiled["steps"]), 3)
    return Manifest(
        name=plan.config.name,
        created_at=datetime.now(UTC).isoformat(timespec="seconds"),
        build_key=plan.key,
        config=plan.config,
        target=plan.target,
        backend=BackendRecord(name=plan.backend, version=compiled["backend_version"]),
        tools=plan.tools,
        sources=plan.sources,
        steps=tuple(StepRecord(**vars(step)) for step in compiled["steps"]),
        inputs=tuple(IoRecord(**vars(tensor)) for tensor in network.inputs),
        outputs=tuple(IoRecord(**vars(tensor)) for tensor in network.outputs),
        profiles=to_json(compiled["profiles"]),
        network=_record(folder, "network/model.onnx"),
        network_plugins=_record(folder, "network/plugins.onnx"),
        network_data=_record(folder, "network/model.onnx.data"),
        decoder=compiled.get("decoder"),
        totals=network.totals(),
        hybrid=HybridRecord(**compiled["hybrid"]) if plan.is_hybrid else None,
        vision=VisionRecord(**compiled["vision"]) if plan.takes_images else None,
        embeddings=_record(folder, EMBEDDINGS),
        quantized=_quantized(folder),
        engines=engines,
        files=(),
        warnings=tuple(compiled["warnings"]),
        metrics=BuildMetrics(prepare_s=prepare_s, **compiled["metrics"]),
    )


def _other_files(bundle: Bundle) -> tuple[FileRecord, ...]:
    """Return the records of all files that have none yet."""
    listed = set(bundle.file_names())
    paths = sorted(path for path in bundle.path.rglob("*") if path.is_file())
    names = [name for path in paths if (name := str(path.relative_to(bundle.path))) not in listed]
    return tuple(record for name in names if (record := _record(bundle.path, name)) is not None)


def _quantized(folder: Path) -> tuple[FileRecord, ...]:
    """Return the records of the quantized checkpoint's weights and config, none where there is none."""
    names = sorted(path.relative_to(folder) for path in (folder / QUANTIZED).glob("*") if path.suffix in _WEIGHT_FILES)
    return tuple(record for name in names if (record := _record(folder, str(name))) is not None)


# Of a quantized checkpoint: what its weights follow from.
_WEIGHT_FILES = (".safetensors", ".json")


def _record(folder: Path, path: str) -> FileRecord | None:
    """Return the record of a file, None where there is none."""
    file = folder / path
    if not file.exists():
        return None
    return FileRecord(path=path, size_bytes=file.stat().st_size, sha256=sha256_of(file))
