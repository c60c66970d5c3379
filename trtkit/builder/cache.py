"""The build cache: bundles keyed by what they were built from, so that no build is repeated."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import importlib.metadata
import json
import os
import platform
import secrets
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trtkit.bundle.bundle import is_bundle, open_bundle
from trtkit.errors import BundleError
from trtkit.files import CASTS, cache_folder, named_digest, remove_tree
from trtkit.models.registry import outside_digest
from trtkit.network.custom_op import trtkits_ops_digest, user_ops_digest
from trtkit.version import __version__

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from trtkit.bundle.records import FileRecord
    from trtkit.config.schema import ModelConfig
    from trtkit.config.targets import Target

# Packages whose version affects the build.
_TOOLS = (
    "tensorrt-rtx-cu13", "tensorrt-cu13", "tensorrt", "onnx", "onnxslim", "onnxscript", "nvidia-modelopt", "torch",
    "transformers",
)  # fmt: skip
# Least recently used bundles beyond this size are evicted.
CACHE_LIMIT_GIB = 20.0
PACKAGE = Path(__file__).parents[1]


def tool_versions() -> dict[str, str]:
    """Return the versions of Python, trtkit and the build's packages, and digests of the user's ops and families."""
    versions = {"python": platform.python_version(), "trtkit": __version__}
    for package in _TOOLS:
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    added = {"custom ops": user_ops_digest(), "families": outside_digest()}
    return versions | {kind: digest for kind, digest in added.items() if digest}


def build_key(
    config: ModelConfig, target: Target, backend: str, sources: Sequence[FileRecord], tools: Mapping[str, str]
) -> str:
    """Return the SHA-256 of everything that the plan depends on; descriptions and paths are excluded.

    sources: the model's files, then the calibration files.
    """
    settings = config.model_dump(mode="json", exclude={"description", "target", "preprocess", "task", "verify"})
    digests = [source.sha256 for source in sources]
    if config.engine_nms is not None:
        settings["boxes"] = config.engine_nms.model_dump(mode="json")
    settings["source"] = _without_paths(settings["source"])
    if settings["quantize"] is not None:
        settings["quantize"] = _without_data(settings["quantize"])
    where = {"backend": backend, "compute_capabilities": target.compute_capabilities}
    text = json.dumps([settings, digests, where, dict(tools), code_digest(PACKAGE)], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


@functools.cache
def code_digest(package: Path) -> str:
    """Return the SHA-256 of each module of a package and of trtkit's ops, which may change between two releases."""
    modules = ((path.relative_to(package).as_posix(), path) for path in sorted(package.rglob("*.py")))
    return named_digest(modules) + trtkits_ops_digest()


def _without_paths(source: dict[str, Any]) -> dict[str, Any]:
    """Return the `source` section without paths: the digests of the files represent them."""
    torch = source["torch"] and {**source["torch"], "checkpoint": None}
    kind = next(kind for kind, value in source.items() if value is not None)
    return {"kind": kind, "torch": torch} | ({"has_adapter": True} if source["lora"] else {})


def _without_data(options: dict[str, Any]) -> dict[str, Any]:
    """Return the `quantize` section with data paths replaced by numbers; their digests come in the same order."""
    numbers: dict[str, int] = {}

    def numbered(settings: dict[str, Any]) -> dict[str, Any]:
        data = settings["calibration"]["data"]
        number = None if data is None else numbers.setdefault(data, len(numbers))
        return {**settings, "calibration": {**settings["calibration"], "data": number}}

    whole = numbered(options)
    return {**whole, "parts": {name: numbered(part) for name, part in options["parts"].items()}}


def restore(key: str, into: Path) -> bool:
    """Fill the folder `into` with the cached bundle of `key`; return False if there is none, or it is damaged."""
    cached = cache_folder() / "bundles" / key
    if not is_bundle(cached):
        return False
    try:
        bundle = open_bundle(cached)
        bundle.check_files()
        if bundle.manifest.build_key != key:
            raise BundleError("the cached bundle is another model's", str(cached))
    except BundleError:
        shutil.rmtree(cached, ignore_errors=True)
        return False
    with contextlib.suppress(OSError):  # a cache that others share may be read-only
        os.utime(cached)
    _link_tree(cached, into)
    return True


def store(key: str, bundle: Path) -> None:
    """Cache `bundle` under `key`; a full or read-only cache is ignored, since the build itself succeeded."""
    folder = cache_folder() / "bundles"
    partial = folder / f".{key}.{secrets.token_hex(8)}"
    try:
        cache_folder().mkdir(mode=0o700, parents=True, exist_ok=True)
        partial.mkdir(parents=True)
        _link_tree(bundle, partial)
        partial.rename(folder / key)
    except OSError:
        remove_tree(partial)
    with contextlib.suppress(OSError):  # another process prunes too
        _prune(folder)


def cached_bundles() -> list[Path]:
    """Return the folders of the bundles in the cache."""
    return sorted((cache_folder() / "bundles").glob("[0-9a-f]*"))


def clear_cache() -> None:
    """Remove everything cached: bundles, AutoCast's models, runtimes' files, digests. Raises BundleError."""
    try:
        for name in ("bundles", "runtime", CASTS):
            if (cache_folder() / name).is_dir():
                shutil.rmtree(cache_folder() / name)
        for memory in cache_folder().glob("*.json"):
            memory.unlink()
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise BundleError(f"cannot be removed: {reason}", str(error.filename or cache_folder())) from None


def size_bytes(folder: Path) -> int:
    """Return the size of all files in a folder."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file() and not path.is_symlink())


def _prune(folder: Path) -> None:
    """Evict the least recently used bundles beyond the size limit."""
    kept = 0.0
    for bundle in sorted(folder.glob("[0-9a-f]*"), key=lambda path: path.stat().st_mtime, reverse=True):
        kept += size_bytes(bundle) / 2**30
        if kept > CACHE_LIMIT_GIB:
            shutil.rmtree(bundle, ignore_errors=True)


def _link_tree(source: Path, destination: Path) -> None:
    """Copy a folder, hard-linking large files if the file systems allow it.

    Small files are copied because the manifest is rewritten later; external data is copied because ONNX refuses to read
    it from a file with several hard links.
    """

    def copy(origin: str, target: str) -> None:
        if not origin.endswith((".json", ".data")):
            with contextlib.suppress(OSError):
                os.link(origin, target)
                return
        shutil.copy2(origin, target)

    shutil.copytree(source, destination, copy_function=copy, dirs_exist_ok=True)
