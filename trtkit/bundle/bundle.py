"""A bundle: a folder with an engine and everything needed to inspect, check and rebuild it."""

from __future__ import annotations

import json
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from trtkit.bundle.manifest import SCHEMA_VERSION, Manifest
from trtkit.config.load import fetch_fix, file_kind, is_hub_id, missing_fix, shipped_configs
from trtkit.errors import BundleError, did_you_mean
from trtkit.files import MANIFEST, QUANTIZED, read_text, replace_file, sha256_of
from trtkit.network.record import NetworkRecord, record_from_json
from trtkit.pages import HasPage

if TYPE_CHECKING:
    from collections.abc import Collection

    from trtkit.bundle.records import FileRecord
    from trtkit.network.layer_graph import LayerGraph

NETWORK = "network.json"
_REBUILD = "build the bundle again"


@dataclass(frozen=True, repr=False)
class Bundle(HasPage):
    """An open bundle: its folder and manifest."""

    path: Path
    manifest: Manifest

    def __repr__(self) -> str:
        """Return its path and contents on one line."""
        size = sum(record.size_bytes for record in self.manifest.engines) / 2**20
        config = self.manifest.config
        return f"Bundle({str(self.path)!r}: {self.manifest.name}, {config.precision}, engine {size:.1f} MiB)"

    def engine_path(self, stage: str = "") -> Path:
        """Return the plan file of a stage, by default the last one, without checking it."""
        record = self.manifest.stage(stage) if stage else self.manifest.stages[-1]
        return self.path / record.engine

    def onnx_path(self, stage: str = "") -> Path:
        """Return the ONNX file of a stage, by default the only one.

        Raises BundleError if the model is not one ONNX file: language models and hybrids are written with the network
        API.
        """
        record = self.manifest.stage(stage) if stage else self.manifest.stages[0]
        if record.onnx is None or (not stage and not self.is_one_file):
            kind = "an LLM" if self.manifest.interface == "tokens" else "a hybrid"
            raise BundleError(f"the network of {kind} bundle is not an ONNX file", str(self.path))
        return self.path / record.onnx.path

    @property
    def is_one_file(self) -> bool:
        """Whether the whole model is one ONNX file."""
        parts = [part for stage in self.manifest.stages for part in stage.parts]
        return len(parts) == 1 and parts[0].kind == "onnx"

    @property
    def quantized_path(self) -> Path | None:
        """The folder of the quantized checkpoint that the build wrote; None if it wrote none."""
        return self.path / QUANTIZED if self.manifest.quantized else None

    def layers(self, stage: str = "", rank: int = 0) -> LayerGraph | None:
        """Return the layers of a stage's network, by default the last stage's; None if it has plugins.

        Raises BundleError if they, or a source that holds some of their weights, have changed since the build.
        """
        record = self.manifest.stage(stage) if stage else self.manifest.stages[-1]
        layers_record = record.networks[rank].layers
        if layers_record is None:
            return None
        for file in (layers_record.layers, layers_record.weights):
            if file is not None:
                check_file(self.path, file)
        manifest = self.manifest
        holders = [*manifest.sources, *manifest.quantized]
        for number in layers_record.sources:
            if number < len(manifest.sources):
                check_source(holders[number])
            else:
                check_file(self.path, holders[number])
        paths = [
            *(Path(file.path) for file in manifest.sources),
            *(self.path / file.path for file in manifest.quantized),
        ]
        from trtkit.network.layer_file import (  # imports NumPy, which listing bundles does not need
            LayerFiles,
            load_layers,
        )

        graph, holding = load_layers(LayerFiles(self.path / layers_record.layers.path, paths))
        if not holding <= set(layers_record.sources):
            raise BundleError("the layers name weights in a file that was not checked", str(self.path), _REBUILD)
        return graph

    def network_record(self) -> NetworkRecord:
        """Return the layers as `describe` recorded them. Raises BundleError."""
        file = self.path / NETWORK
        try:
            return record_from_json(json.loads(read_text(file)))
        except (OSError, TypeError, ValueError, RecursionError) as error:
            raise BundleError(f"the layers cannot be read: {_first_line(error)}", str(file), _REBUILD) from None

    def check_files(self) -> None:
        """Check the digests of all networks and engines: a plan is code. Raises BundleError."""
        self.check_network()
        for record in self.manifest.engines:
            check_file(self.path, record)

    def check_sources(self, digests: Collection[str]) -> None:
        """Check that the sources, which are outside the bundle, have not changed since the build.

        digests: SHA-256 of each file. Raises BundleError.
        """
        changed = [file.path for file in self.manifest.sources if file.sha256 not in digests]
        if changed:
            raise BundleError("the source has changed since the bundle was built", changed[0], _REBUILD)

    def check_network(self, *, reads_layers: bool = False) -> None:
        """Check the digests of the networks' files. Raises BundleError.

        reads_layers: skip files that `layers` reads, since it checks them.
        """
        left_out = self.manifest.layers_read() if reads_layers else set()
        for record in self.manifest.network_files():
            if record.path not in left_out:
                check_file(self.path, record)

    def check_contents(self) -> None:
        """Check the digests of the small files; refuse unlisted files in subfolders that hold listed ones.

        Raises BundleError.
        """
        listed = {Path(name) for name in self.file_names()}
        for name in listed:
            if name.is_absolute() or ".." in name.parts:
                raise BundleError("the manifest lists a file outside the bundle", str(self.path / name))
        for record in self.manifest.files:
            check_file(self.path, record)
        for folder in sorted({path.parts[0] for path in listed if len(path.parts) > 1}):
            for path in sorted((self.path / folder).rglob("*")):
                if path.is_symlink():
                    raise BundleError("is a symbolic link", str(path), "replace it with the file or folder itself")
                if not path.is_dir() and path.relative_to(self.path) not in listed:
                    raise BundleError("the manifest does not list this file", str(path), "remove it")

    def file_names(self) -> list[str]:
        """Return the manifest's files, relative to the bundle, except itself and the known requests."""
        manifest = self.manifest
        return [record.path for record in (*manifest.network_files(), *manifest.engines, *manifest.files)]


def is_bundle(path: Path) -> bool:
    """Whether `path` is a folder with a manifest."""
    return (path / MANIFEST).is_file()


def is_bundle_folder(path: str) -> bool:
    """Whether `path` is a bundle, or a folder that is neither a model nor named like a shipped config."""
    folder = Path(path)
    is_model = path in shipped_configs() or (folder / "config.json").is_file()
    return is_bundle(folder) or (folder.is_dir() and not is_model)


def open_bundle(path: Bundle | Path | str) -> Bundle:
    """Open the bundle at `path` and check its small files; an open bundle is returned unchanged.

    Raises BundleError if it is not a bundle or is damaged.
    """
    if isinstance(path, Bundle):
        return path
    path = Path(path)
    file = path / MANIFEST
    try:
        data = json.loads(read_text(file))
    except (FileNotFoundError, NotADirectoryError):
        raise _no_bundle(path) from None
    except (OSError, ValueError, RecursionError) as error:
        raise BundleError(f"the manifest cannot be read: {error}", str(file), _REBUILD) from None
    version = data.get("schema_version") if isinstance(data, dict) else None
    if version != SCHEMA_VERSION:
        what = f"unsupported manifest schema version {version!r}; expected {SCHEMA_VERSION}"
        fix = f"build it again with this trtkit: `trtkit build CONFIG --output {shlex.quote(str(path))}`"
        raise BundleError(what, str(file), fix)
    try:
        bundle = Bundle(path, Manifest.model_validate(data))
    except ValidationError as error:
        raise BundleError(f"the manifest is damaged: {_first_line(error)}", str(file), _REBUILD) from None
    bundle.check_contents()
    return bundle


def _no_bundle(path: Path) -> BundleError:
    """Return the error for a path without a manifest, which may be a config or a model that is not built yet."""
    name, built = str(path), Path("bundles")
    by_suffix, is_shipped = file_kind(path), name in shipped_configs()
    if is_shipped or (by_suffix is not None and path.is_file()) or (path / "config.json").is_file():
        kind = "config" if is_shipped or by_suffix == "config" else "model"
        bundle = built / (path.stem if path.is_file() else path.name)
        fix = f"build it: `trtkit build {shlex.quote(name)}`"
        if is_bundle(bundle):
            fix = f"give `{bundle}`, which was built before, or {fix}"
        return BundleError(f"this is a {kind}, not a bundle", name, fix)
    if is_hub_id(name):
        return BundleError(f"not a bundle: `{MANIFEST}` is missing", name, fetch_fix(name))
    if not path.exists():
        return BundleError("no such bundle", name, missing_fix(name))
    siblings = (str(entry) for folder in (built, path.parent) for entry in folder.glob("*") if is_bundle(entry))
    hint = did_you_mean(name, [*shipped_configs(), *siblings])
    return BundleError(f"not a bundle: `{MANIFEST}` is missing", name, f"{hint}give a folder that `trtkit build` wrote")


def check_file(folder: Path, record: FileRecord) -> None:
    """Compare one file with its record. Raises BundleError if it is missing, outside the bundle or changed."""
    path = folder / record.path
    try:
        if not path.resolve().is_relative_to(folder.resolve()):
            raise BundleError("the manifest lists a file outside the bundle", str(path))
        sha256 = sha256_of(path)
    except OSError as error:
        raise BundleError(f"cannot be read: {error.strerror}", str(path), _REBUILD) from None
    except ValueError:  # a NUL in the name
        raise BundleError("the manifest has an invalid file name", repr(record.path), _REBUILD) from None
    if sha256 != record.sha256:
        raise BundleError("the file has changed since the build: SHA-256 mismatch", str(path), "build the bundle again")


def check_source(record: FileRecord) -> None:
    """Compare a source, which is outside the bundle, with its record. Raises BundleError if it has changed."""
    try:
        sha256 = sha256_of(Path(record.path))
    except OSError as error:
        raise BundleError(f"cannot be read: {(error.strerror or str(error)).lower()}", record.path, _REBUILD) from None
    if sha256 != record.sha256:
        raise BundleError("the source has changed since the bundle was built", record.path, _REBUILD)


def write_json(path: Path, data: Any) -> None:
    """Write `data` atomically: readers see either the old file or the new one. Raises OSError."""
    replace_file(path, f"{json.dumps(data, indent=1)}\n".encode())


def _first_line(error: Exception) -> str:
    if isinstance(error, ValidationError):
        first = error.errors(include_url=False)[0]
        return f"{'.'.join(str(part) for part in first['loc'])}: {first['msg']}"
    return str(error)
