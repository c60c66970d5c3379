"""Files that extend host memory, a block each: written under a temporary name and renamed, verified whenever read.

A file has a header of 152 bytes, the preimage of the block's key, and the block. The header has a magic number, the
identity of the caches, the key, both sizes, the block's tokens, and a digest of all this and the rest. A torn or
damaged file, or one of another model, is therefore never used; it is removed.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import queue
import secrets
import struct
import threading
from dataclasses import dataclass
from hashlib import blake2b
from typing import TYPE_CHECKING, NamedTuple

from trtkit.errors import RequestError
from trtkit.files import open_lock, open_regular
from trtkit.llm.cache.held_blocks import digest
from trtkit.llm.cache.host.store import HostStore

if TYPE_CHECKING:
    from pathlib import Path

_MAGIC = b"TRTKITK2"
_HEADER = struct.Struct("<8s32s32sQQQ")  # magic, identity, key, bytes of its preimage and of the block, tokens
_DIGEST_BYTES = 56
_OVERHEAD = _HEADER.size + _DIGEST_BYTES
_SUFFIX, _TEMPORARY = ".kv", ".new"
_POLL_S = 0.5
_MOST_WAITING_BYTES = 256 << 20
_MOST_PREIMAGE_BYTES = 64 << 20
_MOST_DIGITS = 9  # of the token count in a file's name


class _File(NamedTuple):
    size_bytes: int
    tokens: int


class _Order(NamedTuple):
    key: bytes
    preimage: bytes
    tokens: int
    data: bytes


@dataclass(frozen=True)
class CacheFolder:
    """A folder for cached blocks that outlives the process, with at most `limit_bytes` of files.

    model: identifies the model whose caches they are; those of other models are never read.
    """

    path: Path
    limit_bytes: int
    model: str


class FileTier:
    """Blocks in a folder of their own, at most `limit_bytes` of files, evicted as in host memory.

    One thread writes; other threads may read blocks at any time. identity: 32 bytes for the model and the caches'
    layout. Raises RequestError if the folder cannot be written or another process uses it.
    """

    def __init__(self, folder: Path, limit_bytes: int, identity: bytes) -> None:
        self._folder, self._identity = folder / identity.hex()[:32], identity
        self._files = HostStore[_File](limit_bytes, self._remove)
        self._lock = threading.Lock()
        self._orders: queue.SimpleQueue[_Order | threading.Event | None] = queue.SimpleQueue()
        self._waiting: dict[bytes, int] = {}
        self.failures = 0
        self._changes: list[tuple[bytes, bytes | None]] | None = None
        try:
            if not folder.exists():
                folder.mkdir(mode=0o700, parents=True)
            self._folder.mkdir(mode=0o700, exist_ok=True)
            self._folder.chmod(0o700)  # caches reveal the prompts
            self._descriptor = open_lock(self._folder / "lock")
        except OSError as error:
            reason = (error.strerror or str(error)).lower()
            raise RequestError(f"cannot be written: {reason}", str(folder), "choose a writable folder") from None
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(self._descriptor)
            what = "another process uses this folder for caches of this model"
            raise RequestError(what, str(folder), "give each process a folder of its own") from None
        self._scan()
        self._thread = threading.Thread(target=self._work, name="trtkit-cache-files", daemon=True)
        self._thread.start()

    def __contains__(self, key: bytes) -> bool:
        with self._lock:
            return key in self._files

    def __len__(self) -> int:
        with self._lock:
            return len(self._files)

    @property
    def size_bytes(self) -> int:
        """Bytes of all files."""
        return self._files.size_bytes

    @property
    def lengths(self) -> set[int]:
        """Return the block lengths in use, in tokens."""
        with self._lock:
            return {file.tokens for _, file in self._files.items()}

    def changes(self) -> list[tuple[bytes, bytes | None]]:
        """Return keys with their preimages, or None for removed files, since the last call; all files the first time.

        A preimage identifies the block's content. A file whose key is not its preimage's digest is left out.
        """
        with self._lock:
            if self._changes is None:
                preimages = (
                    (key, _read_preimage(self._path(key, file.tokens), key)) for key, file in self._files.items()
                )
                self._changes = [(key, preimage) for key, preimage in preimages if preimage is not None]
            changes, self._changes = self._changes, []
            return changes

    def put(self, preimage: bytes, tokens: int, data: bytes) -> None:
        """Queue a block to be written, unless it exists or too many wait. Its key is the preimage's digest."""
        key = digest(preimage)
        with self._lock:
            is_full = sum(self._waiting.values()) + len(data) > _MOST_WAITING_BYTES
            if key in self._files or key in self._waiting or (is_full and self._waiting):
                return
            self._waiting[key] = len(data)
        self._orders.put(_Order(key, preimage, tokens, data))

    def read(self, key: bytes) -> bytes | None:
        """Return a block; None, and remove the file, if it is not intact."""
        with self._lock:
            if key not in self._files:
                return None
            file = self._files.get(key)
            self._files.touch([key])
        path = self._path(key, file.tokens)
        data = _read(path, self._identity, key, file)
        with contextlib.suppress(OSError), self._lock:
            if data is not None:
                os.utime(path)
            elif key in self._files:
                self.failures += 1
                self._remove(key, self._files.pop(key))
        return data

    def flush(self) -> None:
        """Wait until all queued blocks have been written, or the writing thread has failed."""
        done = threading.Event()
        self._orders.put(done)
        while not done.wait(_POLL_S) and self._thread.is_alive():
            continue

    def close(self) -> None:
        """Write queued blocks and release the folder."""
        self._orders.put(None)
        self._thread.join()
        os.close(self._descriptor)

    def _scan(self) -> None:
        """Take stock of the folder: remove unfinished files, and files beyond the limit."""
        entries = []
        for path in self._folder.iterdir():
            key, tokens = _parts(path.name)
            if key is None or not path.is_file() or path.is_symlink():
                if path.suffix in {_SUFFIX, _TEMPORARY}:
                    with contextlib.suppress(IsADirectoryError):
                        path.unlink(missing_ok=True)
                continue
            status = path.stat()
            entries.append((status.st_mtime_ns, key, _File(status.st_size, tokens)))
        for _, key, file in sorted(entries):
            if file.size_bytes > _OVERHEAD and self._files.make_room(file.size_bytes):
                self._files.put(key, file.size_bytes, file.tokens, file)
            else:
                self._path(key, file.tokens).unlink(missing_ok=True)

    def _work(self) -> None:
        """Write blocks as they come. A block that cannot be written is skipped: it will be computed again."""
        while (order := self._orders.get()) is not None:
            if isinstance(order, threading.Event):
                order.set()
                continue
            with contextlib.suppress(OSError):
                self._write(order)
            with self._lock:
                del self._waiting[order.key]

    def _write(self, order: _Order) -> None:
        key, preimage, tokens, data = order
        size = _OVERHEAD + len(preimage) + len(data)
        with self._lock:
            if not self._files.make_room(size):
                return
        header = _HEADER.pack(_MAGIC, self._identity, key, len(preimage), len(data), tokens)
        temporary = self._folder / f"{secrets.token_hex(8)}{_TEMPORARY}"
        try:
            with open(temporary, "xb", opener=_open_private) as file:
                file.write(header)
                file.write(_digest(header, preimage, data))
                file.write(preimage)
                file.write(data)
            temporary.replace(self._path(key, tokens))
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
        with self._lock:
            self._files.put(key, size, tokens, _File(size, tokens))
            if self._changes is not None:
                self._changes.append((key, preimage))

    def _remove(self, key: bytes, file: _File) -> None:
        if self._changes is not None:
            self._changes.append((key, None))
        self._path(key, file.tokens).unlink(missing_ok=True)

    def _path(self, key: bytes, tokens: int) -> Path:
        return self._folder / f"{key.hex()}.{tokens}{_SUFFIX}"


def _open_private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def _digest(*parts: bytes) -> bytes:
    hashed = blake2b(digest_size=_DIGEST_BYTES)
    for part in parts:
        hashed.update(part)
    return hashed.digest()


def _parts(name: str) -> tuple[bytes | None, int]:
    """Return the key and token count in a file's name; no key if the name is not one of trtkit's."""
    key, _, rest = name.partition(".")
    tokens = rest.removesuffix(_SUFFIX)
    if len(key) != 64 or not rest.endswith(_SUFFIX) or not tokens.isdecimal() or len(tokens) > _MOST_DIGITS:
        return None, 0
    try:
        return bytes.fromhex(key), int(tokens)
    except ValueError:
        return None, 0


def _read(path: Path, identity: bytes, key: bytes, known: _File) -> bytes | None:
    """Return the block of a file; None if anything about it is wrong."""
    try:
        with open_regular(path) as file:
            header, checked = file.read(_HEADER.size), file.read(_DIGEST_BYTES)
            *names, preimage_bytes, size, tokens = _HEADER.unpack(header)
            is_of = (*names, _OVERHEAD + preimage_bytes + size, tokens)
            if is_of != (_MAGIC, identity, key, known.size_bytes, known.tokens):
                return None
            preimage, data = file.read(preimage_bytes), file.read(size + 1)
    except (OSError, ValueError, struct.error):
        return None
    return data if len(data) == size and checked == _digest(header, preimage, data) else None


def _read_preimage(path: Path, key: bytes) -> bytes | None:
    """Return the preimage of a file's key; None if the file has another one."""
    try:
        with open_regular(path) as file:
            magic, *_, size, _, _ = _HEADER.unpack(file.read(_HEADER.size))
            file.seek(_OVERHEAD)
            preimage = file.read(size) if magic == _MAGIC and size <= _MOST_PREIMAGE_BYTES else b""
    except (OSError, ValueError, struct.error):
        return None
    return preimage if digest(preimage) == key else None
