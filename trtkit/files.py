"""Write files and replace folders atomically, and never through a link that somebody left in the way."""

import contextlib
import ctypes
import errno
import fcntl
import hashlib
import json
import os
import secrets
import shutil
import stat
import tempfile
import time
from collections.abc import Iterable, Iterator
from io import BufferedReader
from pathlib import Path
from typing import IO

from trtkit.errors import TrtkitError

MANIFEST = "manifest.json"
"""What makes a folder a bundle."""
QUANTIZED = "quantized"
"""The folder in a bundle of the checkpoint that the build quantized."""
CASTS = "autocast"
"""The folder in the cache of models that ModelOpt's AutoCast has converted."""
_MOST_REMEMBERED = 4096
_DIGESTS, _LARGE_BYTES, _SETTLED_NS = "digests.json", 4 << 20, 50_000_000
_SCRATCH, _SCRATCH_AGE_S = "trtkit-scratch-", 60.0
_RENAME_EXCHANGE = 2  # linux/fs.h
_AT_FDCWD = -100
_NO_EXCHANGE = {errno.ENOSYS, errno.EINVAL, errno.ENOTSUP, errno.EPERM}


def cache_folder() -> Path:
    """Return the cache: $TRTKIT_CACHE_DIR, else `trtkit` in the user's cache folder."""
    chosen = os.environ.get("TRTKIT_CACHE_DIR")
    if chosen:
        return Path(chosen)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "trtkit"


def recalled(memory: str) -> dict[str, object]:
    """Return what a file of the cache remembers; nothing if it cannot be read."""
    try:
        data = json.loads((cache_folder() / memory).read_bytes())
    except (OSError, ValueError, RecursionError):
        return {}
    return data if isinstance(data, dict) else {}


def remember(memory: str, name: str, value: object) -> None:
    """Add an entry to a file of the cache, dropping the oldest beyond a limit. Does nothing if it cannot be written."""
    kept = list((recalled(memory) | {name: value}).items())[-_MOST_REMEMBERED:]
    with contextlib.suppress(OSError):
        cache_folder().mkdir(mode=0o700, parents=True, exist_ok=True)
        replace_file(cache_folder() / memory, json.dumps(dict(kept)).encode())


def sha256_of(path: Path) -> str:
    """Return the SHA-256 of a file's content, in hexadecimal. Raises OSError, for a pipe or a device too.

    That of a large file is remembered, and known again while the file's inode, size and times of change stay the same.
    """
    with open_regular(path) as file:
        status, now = os.fstat(file.fileno()), time.time_ns()
        if status.st_size < _LARGE_BYTES:
            return hashlib.file_digest(file, "sha256").hexdigest()
        mark = [status.st_size, status.st_mtime_ns, status.st_ctime_ns]
        name = f"{status.st_dev}:{status.st_ino}"
        known = recalled(_DIGESTS).get(name)
        if isinstance(known, list) and known[1:] == mark:
            return str(known[0])
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    if now - max(mark[1:]) > _SETTLED_NS:  # a file may change twice within a tick of its clock
        remember(_DIGESTS, name, [digest, *mark])
    return digest


def named_digest(files: Iterable[tuple[str, Path]]) -> str:
    """Return the SHA-256 of files' names and contents, in this order; "" if there are none. Raises OSError."""
    digest, has_files = hashlib.sha256(), False
    for name, path in files:
        digest.update(f"{name}\0".encode() + path.read_bytes())
        has_files = True
    return digest.hexdigest() if has_files else ""


@contextlib.contextmanager
def scratch_folder() -> Iterator[Path]:
    """Yield an empty temporary folder that is removed with the block; those of killed processes are removed first."""
    parent = Path(tempfile.gettempdir())
    with contextlib.suppress(OSError):
        for left in parent.glob(f"{_SCRATCH}*"):
            _remove_unlocked(left)
    with tempfile.TemporaryDirectory(prefix=_SCRATCH) as name:
        descriptor = os.open(name, os.O_RDONLY)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield Path(name)
        finally:
            os.close(descriptor)


def _remove_unlocked(folder: Path) -> None:
    """Remove a scratch folder of this user that no process holds any longer; a new one may not be locked yet."""
    with contextlib.suppress(OSError):
        status = folder.lstat()
        if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid():
            return
        descriptor = os.open(folder, os.O_RDONLY | os.O_NOFOLLOW)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if time.time() - status.st_mtime > _SCRATCH_AGE_S:
                remove_tree(folder)
        finally:
            os.close(descriptor)


def replace_file(path: Path, data: bytes) -> None:
    """Write `path` so that readers see the old file or the new one. Raises OSError.

    A device or a pipe, such as /dev/stdout, is written to.
    """
    if path.is_relative_to("/dev") or (path.exists() and not (path.is_file() or path.is_dir())):
        path.write_bytes(data)
        return
    with replacing(path) as file:
        file.write(data)


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[IO[bytes]]:
    """Yield a new file under a random name that takes the place of `path` if the block succeeds. Raises OSError.

    A link there is replaced, not followed.
    """
    temporary = path.with_name(f".{path.name[:100]}.{secrets.token_hex(8)}")
    try:
        with temporary.open("xb") as file:
            yield file
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def write_output(path: Path, text: str) -> None:
    """Write a file that the user asked for, atomically. Raises TrtkitError if it cannot be written."""
    try:
        replace_file(path, text.encode(errors="backslashreplace"))
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise TrtkitError(f"cannot be written: {reason}", str(path), "choose a writable folder with space") from None


def open_regular(path: Path) -> BufferedReader:
    """Open a file to read it. Raises OSError for anything else: a pipe or a device would be waited for, without end."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    if stat.S_ISREG(os.fstat(descriptor).st_mode):
        return os.fdopen(descriptor, "rb")
    os.close(descriptor)
    raise OSError(errno.EINVAL, "Not a regular file", str(path))


def read_text(path: Path, limit_mib: int = 64) -> str:
    """Return the text of a file. Raises OSError, for a pipe or more than `limit_mib` too; UnicodeDecodeError."""
    with open_regular(path) as file:
        data = file.read((limit_mib << 20) + 1)
    if len(data) > limit_mib << 20:
        raise OSError(errno.EFBIG, f"Larger than {limit_mib} MiB", str(path))
    return data.decode()


def json_fault(error: Exception) -> str:
    """Return why text is not JSON."""
    if str(error).startswith("Unexpected UTF-8 BOM"):
        return "it begins with a byte-order mark; save it as UTF-8 without one"
    return str(error)


def open_lock(path: Path) -> int:
    """Open or create the lock file `path`; return its descriptor. Raises OSError for a link or anything but a file."""
    descriptor = os.open(path, os.O_CREAT | os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK, 0o644)
    if stat.S_ISREG(os.fstat(descriptor).st_mode):
        return descriptor
    os.close(descriptor)
    raise OSError(errno.EINVAL, "the lock is not a file", str(path))


def remove_tree(path: Path) -> None:
    """Remove a folder, or the link that replaces it; nothing if neither is there."""
    with contextlib.suppress(OSError):
        if path.is_symlink():
            path.unlink()
        else:
            shutil.rmtree(path, ignore_errors=True)


def exchange(first: Path, second: Path) -> bool:
    """Let two folders change places in one step; False if the file system or the system cannot. Raises OSError."""
    rename = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if rename is None:
        return False
    if rename(_AT_FDCWD, os.fsencode(first), _AT_FDCWD, os.fsencode(second), _RENAME_EXCHANGE) == 0:
        return True
    number = ctypes.get_errno()
    if number in _NO_EXCHANGE:
        return False
    raise OSError(number, os.strerror(number), str(first))
