"""Models on Hugging Face's hub: the files that trtkit needs, and a complete, verified local copy of them.

Copies are in the hub's own cache, shared with transformers and vLLM, or in a folder of the user's choice. Downloads
resume where they stopped. `config.json` is written last, once the digests of all other files match, so that a folder
with a config.json is complete.
"""

from __future__ import annotations

import glob
import hashlib
import json
import os
import re
import shlex
import shutil
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING

from trtkit.errors import SourceError
from trtkit.files import read_text

if TYPE_CHECKING:
    from types import ModuleType

    from huggingface_hub import ModelInfo

CONFIG = "config.json"
_INDEX = "model.safetensors.index.json"
# Files that trtkit reads: settings, tokenizers, templates, weights; the modules of a sentence encoder.
_WANTED = ("*.json", "*.txt", "*.model", "*.jinja", "*.tiktoken", "*.safetensors")
_WANTED_BELOW = ("[0-9]_*/*.json", "[0-9]_*/*.safetensors")
# Duplicates of the weights, in their authors' layout.
_UNWANTED = ("consolidated*.safetensors",)
_GIB = 2**30
_CHUNK_BYTES = 2**20


@dataclass(frozen=True)
class HubFile:
    """A file of a repository. sha256: of a file in large-file storage; blob: git's SHA-1 of any other file."""

    name: str
    size_bytes: int
    sha256: str | None
    blob: str | None

    def is_intact(self, path: Path) -> bool:
        """Whether the file at `path` has this one's size and digest."""
        if not path.is_file() or path.stat().st_size != self.size_bytes:
            return False
        if self.sha256 is not None:
            return _digest(path, hashlib.sha256()) == self.sha256
        header = hashlib.sha1(b"blob %d\0" % self.size_bytes, usedforsecurity=False)
        return self.blob is None or _digest(path, header) == self.blob


@dataclass(frozen=True)
class HubModel:
    """The files of a repository that trtkit needs, at one revision."""

    hub_id: str
    revision: str
    files: tuple[HubFile, ...]

    @property
    def size_bytes(self) -> int:
        """Bytes of all files."""
        return sum(file.size_bytes for file in self.files)

    def __str__(self) -> str:
        size = self.size_bytes
        text = f"{size / _GIB:.1f} GiB" if size >= _GIB / 10 else f"{size / 2**20:.1f} MiB"
        return f"{self.hub_id}: {len(self.files)} files, {text}"


def cached_folder(hub_id: str) -> Path | None:
    """Return the folder of a complete copy in the hub's cache; None if there is none. Works offline."""
    try:
        from huggingface_hub import constants, try_to_load_from_cache
    except ModuleNotFoundError:
        return None
    path = try_to_load_from_cache(hub_id, CONFIG, cache_dir=constants.HF_HUB_CACHE)
    if not isinstance(path, str):
        return None
    folder = Path(path).parent
    return folder if _has_weights(folder) else None


def hub_folder(hub_id: str) -> Path:
    """Return the folder of a complete copy in the hub's cache. Raises SourceError if there is none."""
    folder = cached_folder(hub_id)
    if folder is None:
        raise SourceError("not on this machine", hub_id, f"download it: `trtkit fetch {hub_id}`")
    return folder


def read_hub(hub_id: str, folder: Path | None = None) -> HubModel:
    """Return the list of a model's files from the hub. folder: the destination, for the fixes in errors.

    Raises SourceError if the hub is unreachable, lacks the model or denies access to it, and for a repository that
    trtkit cannot build from.
    """
    info = _info(_client(hub_id, folder), hub_id, folder)
    names = [sibling.rfilename for sibling in info.siblings or ()]
    wanted = [sibling for sibling in info.siblings or () if _is_wanted(sibling.rfilename)]
    if CONFIG not in names or not any(fnmatchcase(sibling.rfilename, "*.safetensors") for sibling in wanted):
        raise _no_weights(hub_id, names)
    files = (
        HubFile(file.rfilename, file.size or 0, file.lfs.sha256 if file.lfs else None, file.blob_id) for file in wanted
    )
    return HubModel(hub_id, str(info.sha), tuple(sorted(files, key=lambda file: file.name)))


def fetch_config(hub_id: str) -> Path:
    """Return the folder of a model's config.json in the hub's cache, downloaded if it is missing.

    Raises SourceError.
    """
    folder = cached_folder(hub_id)
    if folder is not None:
        return folder
    hub = _client(hub_id)
    _info(hub, hub_id)  # fails at once where downloading a file would try five times
    return Path(_load(hub, hub_id, CONFIG, "main", None)).parent


def fetch(model: HubModel, folder: Path | None = None, *, has_bars: bool = False) -> Path:
    """Download a model, verify every file, and return its folder.

    folder: the destination; the hub's cache if None. has_bars: whether the hub's client shows its progress bars. Raises
    SourceError; completely downloaded files are kept, so that a repeated call resumes.
    """
    hub = _client(model.hub_id)
    _check_room(model, folder)
    others = [file for file in model.files if file.name != CONFIG]
    was_disabled = hub.utils.are_progress_bars_disabled()
    if not has_bars:
        hub.utils.disable_progress_bars()
    try:
        copy = Path(
            hub.snapshot_download(
                model.hub_id,
                revision=model.revision,
                local_dir=folder,
                cache_dir=None if folder else hub.constants.HF_HUB_CACHE,
                endpoint=_endpoint(),
                allow_patterns=[glob.escape(file.name) for file in others],
            )
        )
    except Exception as error:  # as above
        raise _hub_error(model.hub_id, error, folder) from None
    finally:
        if not was_disabled:
            hub.utils.enable_progress_bars()
    _check_digests(model, copy, others)
    config = Path(_load(hub, model.hub_id, CONFIG, model.revision if folder else "main", folder))
    if config.parent != copy:
        what = "the repository has changed while it was fetched"
        raise SourceError(what, model.hub_id, "repeat the command")
    _check_digests(model, copy, [file for file in model.files if file.name == CONFIG])
    return copy


def download_command(hub_id: str, folder: str | Path) -> str:
    """Return the command that downloads a model repository from Hugging Face's hub."""
    return shlex.join(["hf", "download", hub_id, "--local-dir", str(folder)])


def _client(hub_id: str, folder: Path | None = None) -> ModuleType:
    """Return the hub's client. Raises SourceError if it is not installed."""
    try:
        import huggingface_hub
    except ModuleNotFoundError:
        what = "`huggingface_hub` is not installed"
        raise SourceError(what, hub_id, f"pip install huggingface_hub, or {_elsewhere(hub_id, folder)}") from None
    return huggingface_hub


def _endpoint() -> str | None:
    """Return the hub's address: the current HF_ENDPOINT, which the client reads only once. None for its default."""
    return (os.environ.get("HF_ENDPOINT") or "").rstrip("/") or None


def _info(hub: ModuleType, hub_id: str, folder: Path | None = None) -> ModelInfo:
    """Return the hub's information on a repository and its files. Raises SourceError."""
    try:
        info: ModelInfo = hub.HfApi(endpoint=_endpoint()).model_info(hub_id, files_metadata=True)
    except Exception as error:  # the hub's client passes on whatever its HTTP library raises
        raise _hub_error(hub_id, error, folder) from None
    return info


def _load(hub: ModuleType, hub_id: str, name: str, revision: str, folder: Path | None) -> str:
    """Download one file of a repository and return its path. Raises SourceError."""
    try:
        path = hub.hf_hub_download(
            hub_id,
            name,
            revision=revision,
            local_dir=folder,
            cache_dir=None if folder else hub.constants.HF_HUB_CACHE,
            endpoint=_endpoint(),
        )
    except Exception as error:  # as above
        raise _hub_error(hub_id, error, folder) from None
    return str(path)


def _is_wanted(name: str) -> bool:
    if "/" in name:
        return any(fnmatchcase(name, pattern) for pattern in _WANTED_BELOW)
    is_copy = any(fnmatchcase(name, pattern) for pattern in _UNWANTED)
    return not is_copy and any(fnmatchcase(name, pattern) for pattern in _WANTED)


def _has_weights(folder: Path) -> bool:
    """Whether a copy has all its weights: other programs download a config alone, or stop half-way."""
    index = folder / _INDEX
    if not index.is_file():
        return any(folder.glob("*.safetensors"))
    try:
        names = set(json.loads(read_text(index))["weight_map"].values())
    except (OSError, ValueError, TypeError, AttributeError, KeyError):
        return False
    return all((folder / str(name)).is_file() for name in names)


def _no_weights(hub_id: str, names: list[str]) -> SourceError:
    """Return the error for a repository without config.json and safetensors, listing what it has."""
    others = [name for name in names if name.endswith((".gguf", ".onnx"))]
    if others:
        file = others[0]
        command = shlex.join(["hf", "download", hub_id, file, "--local-dir", "."])
        fix = f"fetch one of its files and build that: `{command}`, then `trtkit build {shlex.quote(file)}`"
        return SourceError(f"the repository lacks `{CONFIG}` or safetensors", hub_id, fix)
    fix = "name a repository that transformers loads, with its weights as .safetensors files"
    return SourceError(f"the repository lacks `{CONFIG}` or .safetensors files", hub_id, fix)


def _check_room(model: HubModel, folder: Path | None) -> None:
    """Raise SourceError if the disk has no room for the missing files."""
    from huggingface_hub import constants, try_to_load_from_cache

    def is_here(file: HubFile) -> bool:
        if folder is not None:
            return (folder / file.name).is_file()
        path = try_to_load_from_cache(model.hub_id, file.name, constants.HF_HUB_CACHE, model.revision)
        return isinstance(path, str)

    missing = sum(file.size_bytes for file in model.files if not is_here(file))
    disk = (folder or Path(constants.HF_HUB_CACHE)).expanduser().absolute()
    while not disk.exists():
        disk = disk.parent
    free = shutil.disk_usage(disk).free
    if missing > free:
        what = f"needs {missing / _GIB:.1f} GiB; {disk} has {free / _GIB:.1f} GiB free"
        raise SourceError(what, model.hub_id, "free space, or choose another disk: HF_HOME, or `trtkit fetch -o DIR`")


def _check_digests(model: HubModel, copy: Path, files: list[HubFile]) -> None:
    """Compare files with the hub's digests, removing those that differ. Raises SourceError."""
    damaged = [file for file in files if not file.is_intact(copy / file.name)]
    for file in damaged:
        path = copy / file.name
        path.resolve().unlink(missing_ok=True)
        path.unlink(missing_ok=True)
    if damaged:
        names = ", ".join(file.name for file in damaged)
        what = f"not what the hub has, by size or digest, and removed: {names}"
        raise SourceError(what, model.hub_id, "repeat the command; what is right stays")


def _digest(path: Path, digest: hashlib._Hash) -> str:
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK_BYTES):
            digest.update(chunk)
    return digest.hexdigest()


def _elsewhere(hub_id: str, folder: Path | None) -> str:
    command = download_command(hub_id, folder or Path("models") / hub_id.partition("/")[2])
    return f"on a machine that reaches the hub, run `{command}`, then give that folder here"


def _hub_error(hub_id: str, error: Exception, folder: Path | None = None) -> SourceError:
    """Return the error for users for a failure of the hub's client."""
    from huggingface_hub import errors

    causes = (error, error.__cause__, error.__context__)
    status = next((code for cause in causes if (code := _status(cause)) is not None), None)
    if isinstance(error, errors.GatedRepoError):
        fix = f"accept its terms at https://huggingface.co/{hub_id}, then `hf auth login` or set HF_TOKEN"
        return SourceError("the model is gated: its owner decides who may download it", hub_id, fix)
    if isinstance(error, errors.RepositoryNotFoundError):
        fix = "check the name; for a private model, `hf auth login` or set HF_TOKEN; for a folder here, check its path"
        return SourceError("no such model on Hugging Face's hub, and no such folder here", hub_id, fix)
    if isinstance(error, errors.RemoteEntryNotFoundError):
        return SourceError(f"the repository has no `{CONFIG}`", hub_id, "name one that transformers loads")
    if isinstance(error, OSError) and error.errno is not None and "space" in str(error.strerror).lower():
        what = f"the disk is full: {error.filename or folder or 'the cache'}"
        return SourceError(what, hub_id, "free space and repeat the command, which goes on where it stopped")
    if status in (401, 403):
        return SourceError(f"the hub refuses access ({status})", hub_id, "`hf auth login`, or set HF_TOKEN")
    reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
    reason = re.sub(r"^\[Errno -?\d+\] ", "", reason)
    fix = f"{_elsewhere(hub_id, folder)}; for a folder here, check its path"
    return SourceError(f"cannot be downloaded: {reason}", hub_id, fix)


def _status(error: BaseException | None) -> int | None:
    code = getattr(getattr(error, "response", None), "status_code", None)
    return code if isinstance(code, int) else None
