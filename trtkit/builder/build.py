"""Build a bundle from a config: gather the inputs, write and build every stage, then rename the folder once."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Literal

from trtkit.builder import cache
from trtkit.builder.active_neurons import with_measured_blocks
from trtkit.builder.build_inputs import BuildInputs, gather_inputs
from trtkit.builder.model_record import file_record, joint_network, model_record
from trtkit.builder.stages import quantized_files
from trtkit.builder.write_stages import WrittenModel, plan_names, write_stages
from trtkit.bundle.bundle import NETWORK, Bundle, is_bundle, open_bundle, write_json
from trtkit.bundle.folder_lock import atomic_folder, locked
from trtkit.bundle.manifest import Manifest
from trtkit.bundle.records import BackendRecord, BuildMetrics, FileRecord
from trtkit.errors import BundleError
from trtkit.files import MANIFEST

if TYPE_CHECKING:
    from pathlib import Path

    from trtkit.config.schema import ModelConfig
    from trtkit.jobs.runner import Runner


@dataclass(frozen=True)
class BuildResult:
    """A finished build. origin: `built`, `restored` from the cache, or `unchanged` if an identical bundle existed."""

    bundle: Bundle
    origin: Literal["built", "restored", "unchanged"]


def build_bundle(config: ModelConfig, out: Path, runner: Runner, *, use_cache: bool = True) -> BuildResult:
    """Build `config` into the folder `out`, or reuse the bundle there if it is up to date.

    Raises TrtkitError for bad input, a failure of TensorRT or a full disk; `out` is then left unchanged.
    """
    inputs = gather_inputs(with_measured_blocks(config, runner), runner)
    if use_cache and (standing := _current(inputs, out)):
        return BuildResult(standing, "unchanged")
    with atomic_folder(out, replaces=MANIFEST) as folder:
        restored = use_cache and cache.restore(inputs.key, folder)
        if not restored:
            _fill(inputs, folder, runner)
        manifest = _adopted(open_bundle(folder), inputs).manifest
        if not restored and use_cache:
            cache.store(inputs.key, folder)
    return BuildResult(Bundle(out, manifest), "restored" if restored else "built")


def _fill(inputs: BuildInputs, folder: Path, runner: Runner) -> None:
    """Write networks, engines and the manifest into `folder`."""
    (folder / "engines").mkdir()
    written = write_stages(inputs, folder, runner, builds=True)
    write_json(folder / NETWORK, joint_network(inputs.model, written).to_json())
    manifest = _manifest(inputs, written, folder)
    manifest = manifest.model_copy(update={"files": _other_files(Bundle(folder, manifest))})
    write_json(folder / MANIFEST, manifest.model_dump(mode="json"))


def _current(inputs: BuildInputs, out: Path) -> Bundle | None:
    """Return the bundle at `out`, its manifest updated, if this build would produce the same one; else None."""
    standing = _standing(inputs, out)
    if standing is None or _is_adopted(standing, inputs):
        return standing
    with locked(out.resolve()):  # another build may have replaced it meanwhile
        standing = _standing(inputs, out)
        return standing and _adopted(standing, inputs)


def _standing(inputs: BuildInputs, out: Path) -> Bundle | None:
    """Return the bundle at `out` if it is intact and has this build's key; else None."""
    if not is_bundle(out):
        return None
    try:
        bundle = open_bundle(out)
        if bundle.manifest.build_key != inputs.key:
            return None
        bundle.check_files()
    except BundleError:
        return None
    return bundle


def _adopted(bundle: Bundle, inputs: BuildInputs) -> Bundle:
    """Return an existing bundle with its manifest updated to settings of the config that do not affect the build.

    These are the source's location, preprocessing, the meaning of outputs, class names and verification; an earlier
    verification result is dropped if any of them changed.
    """
    if _is_adopted(bundle, inputs):
        return bundle
    manifest = bundle.manifest.model_copy(update={**_unhashed(bundle, inputs), "verify": None})
    write_json(bundle.path / MANIFEST, manifest.model_dump(mode="json"))
    return Bundle(bundle.path, manifest)


def _is_adopted(bundle: Bundle, inputs: BuildInputs) -> bool:
    return all(getattr(bundle.manifest, key) == value for key, value in _unhashed(bundle, inputs).items())


def _unhashed(bundle: Bundle, inputs: BuildInputs) -> dict[str, object]:
    capabilities = bundle.manifest.target.compute_capabilities  # those of the network's types if the target names none
    target = inputs.target.model_copy(update={"compute_capabilities": capabilities})
    return {"config": inputs.config, "target": target, "sources": inputs.sources, "labels": inputs.labels}


def _manifest(inputs: BuildInputs, written: WrittenModel, folder: Path) -> Manifest:
    results = written.all_results
    plans = [result.plan for result in results if result.plan is not None]
    return Manifest(
        **dict(model_record(inputs, written, folder)),
        name=inputs.config.name,
        created_at=datetime.now(UTC).isoformat(timespec="seconds"),
        build_key=inputs.key,
        backend=BackendRecord(name=inputs.backend, version=results[0].backend_version),
        tools=inputs.tools,
        sources=inputs.sources,
        quantized=_quantized(folder),
        engines=tuple(
            FileRecord(path=name, size_bytes=plan.size_bytes, sha256=plan.sha256)
            for name, plan in zip(plan_names(inputs.model), plans, strict=True)
        ),
        files=(),
        warnings=tuple(dict.fromkeys(line for plan in plans for line in plan.warnings)),
        metrics=BuildMetrics(
            prepare_s=round(sum(step.seconds for step in written.steps), 3),
            parse_s=round(sum(result.write_s for result in results), 3),
            describe_s=round(sum(result.describe_s for result in results), 3),
            build_s=round(sum(plan.build_s for plan in plans), 3),
            peak_memory_mib=max(plan.peak_memory_mib for plan in plans),
        ),
    )


def _other_files(bundle: Bundle) -> tuple[FileRecord, ...]:
    """Return records of all files that the manifest does not list yet."""
    listed = set(bundle.file_names())
    paths = sorted(path for path in bundle.path.rglob("*") if path.is_file())
    names = [name for path in paths if (name := str(path.relative_to(bundle.path))) not in listed]
    return tuple(record for name in names if (record := file_record(bundle.path, name)) is not None)


def _quantized(folder: Path) -> tuple[FileRecord, ...]:
    """Return records of the quantized checkpoint's weights and config; empty if the build quantized none."""
    names = [path.relative_to(folder) for path in quantized_files(folder)]
    return tuple(record for name in names if (record := file_record(folder, str(name))) is not None)
