"""A bundle: a folder that holds an engine and all that is needed to know, check and rebuild it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from trtkit.engine.manifest import SCHEMA_VERSION, Manifest
from trtkit.errors import BundleError
from trtkit.files import replace_file
from trtkit.sources.digest import sha256_of

if TYPE_CHECKING:
    from collections.abc import Collection
    from pathlib import Path

    from trtkit.engine.manifest import FileRecord

MANIFEST, NETWORK, QUANTIZED = "manifest.json", "network.json", "quantized"
_REBUILD = "build the bundle again"


@dataclass(frozen=True)
class Bundle:
    """A bundle folder with its manifest read."""

    path: Path
    manifest: Manifest

    def engine_path(self, index: int = 0) -> Path:
        """Return the plan file, without checking it."""
        return self.path / self.manifest.engines[index].path

    @property
    def onnx_path(self) -> Path:
        """The ONNX file that TensorRT parsed. Raises BundleError where the network did not come through ONNX."""
        if self.manifest.network is None:
            kind = "an LLM" if self.manifest.hybrid is None else "a hybrid"
            raise BundleError(f"the network of {kind} bundle is no ONNX file", str(self.path))
        return self.path / self.manifest.network.path

    @property
    def quantized_path(self) -> Path | None:
        """The folder of the checkpoint that the build made by quantizing the source; None where it made none."""
        return self.path / QUANTIZED if self.manifest.quantized else None

    def network_record(self) -> dict[str, Any]:
        """Return the layers as `describe` recorded them."""
        record: dict[str, Any] = json.loads((self.path / NETWORK).read_text(encoding="utf-8"))
        return record

    def check_files(self) -> None:
        """Compare every file with its digest: a plan is code. Raises BundleError."""
        self.check_network()
        for record in self.manifest.engines:
            check_file(self.path, record)

    def check_sources(self, digests: Collection[str]) -> None:
        """Compare the sources, which stay where they were, as they are now with those that the bundle was built from.

        digests: SHA-256 of each file. Raises BundleError.
        """
        changed = [file.path for file in self.manifest.sources if file.sha256 not in digests]
        if changed:
            raise BundleError("the source has changed since the bundle was built", changed[0], _REBUILD)

    def check_network(self) -> None:
        """Compare the ONNX files and their weights with their digests. Raises BundleError."""
        hybrid = self.manifest.hybrid
        files = [] if hybrid is None else [file for stage in hybrid.stages for file in stage.files]
        own = self.manifest
        for record in (own.network, own.network_data, own.network_plugins, own.embeddings, *files, *own.quantized):
            if record is not None:
                check_file(self.path, record)


def is_bundle(path: Path) -> bool:
    """Whether `path` is a folder with a manifest."""
    return (path / MANIFEST).is_file()


def open_bundle(path: Path) -> Bundle:
    """Read the bundle at `path`. Raises BundleError where it is none or its manifest does not hold."""
    file = path / MANIFEST
    try:
        data = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise BundleError(
            f"no bundle here: `{MANIFEST}` is missing", str(path), "give a folder that `trtkit build` made"
        ) from None
    except (OSError, json.JSONDecodeError, UnicodeDecodeError) as error:
        raise BundleError(f"the manifest cannot be read: {error}", str(file), _REBUILD) from None
    version = data.get("schema_version") if isinstance(data, dict) else None
    if version != SCHEMA_VERSION:
        what = f"manifest schema version {version!r} is not {SCHEMA_VERSION}"
        raise BundleError(what, str(file), "build the bundle again with this trtkit")
    try:
        return Bundle(path, Manifest.model_validate(data))
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        key = ".".join(str(part) for part in first["loc"])
        raise BundleError(
            f"the manifest is damaged: {key}: {first['msg']}", str(file), "build the bundle again"
        ) from None


def check_file(folder: Path, record: FileRecord) -> None:
    """Compare one file with its record. Raises BundleError where it is missing, outside or changed."""
    path = folder / record.path
    if not path.resolve().is_relative_to(folder.resolve()):
        raise BundleError("the manifest names a file outside the bundle", str(path))
    try:
        sha256 = sha256_of(path)
    except OSError as error:
        raise BundleError(f"cannot be read: {error.strerror}", str(path), _REBUILD) from None
    if sha256 != record.sha256:
        raise BundleError(
            "the file is not the one that was built: its SHA-256 differs", str(path), "build the bundle again"
        )


def write_json(path: Path, data: Any) -> None:
    """Write `data` so that readers see the old file or the new one. Raises OSError."""
    replace_file(path, f"{json.dumps(data, indent=1)}\n".encode())
