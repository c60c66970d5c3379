"""Fill a folder that is seen whole or not at all, by one process at a time."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
from typing import TYPE_CHECKING

from trtkit.errors import BundleError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@contextlib.contextmanager
def atomic_folder(path: Path, *, replaces: str) -> Iterator[Path]:
    """Yield a temporary folder beside `path` that takes its place when the block ends well, and goes when it does not.

    replaces: the file that a folder must hold to be replaced. Raises BundleError where `path` is in use by another
    build, holds something else, or its parent cannot be written.
    """
    if path.is_dir() and (path.is_symlink() or not path.name):
        path = path.resolve()  # a link to a bundle stays a link; `.` has no name to put a neighbour's after
    with locked(path):
        _check_replaceable(path, replaces)
        partial = path.parent / f".{path.name}.partial"
        shutil.rmtree(partial, ignore_errors=True)  # left by a killed build: the lock says that nobody fills it
        try:
            partial.mkdir()
        except OSError as error:
            raise _cannot_write(path, error) from None
        try:
            yield partial
            _swap(partial, path)
        except OSError as error:
            raise _cannot_write(path, error) from None
        finally:
            shutil.rmtree(partial, ignore_errors=True)


def _swap(partial: Path, path: Path) -> None:
    """Put `partial` in the place of `path`."""
    old = path.parent / f".{path.name}.old"
    shutil.rmtree(old, ignore_errors=True)
    if path.exists():
        path.rename(old)
    partial.rename(path)
    shutil.rmtree(old, ignore_errors=True)


def _check_replaceable(path: Path, marker: str) -> None:
    """Refuse to replace what trtkit did not write."""
    if path.is_dir() and (not any(path.iterdir()) or (path / marker).is_file()):
        return
    if path.exists() or path.is_symlink():
        raise BundleError("is there already and is no bundle", str(path), "choose another `--out`, or remove it")


@contextlib.contextmanager
def locked(path: Path, busy: str = "another build is writing this folder", option: str = "--out") -> Iterator[None]:
    """Hold `path`'s lock file; the system frees it when the process dies.

    Raises BundleError that says `busy` while another has it. option: that chooses the folder.
    """
    lock = path.parent / f".{path.name}.lock"
    made = [parent for parent in path.parents if not parent.exists()]
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = _acquire(lock)
    except BlockingIOError:
        raise BundleError(busy, str(path), f"wait for it, or choose another `{option}`") from None
    except OSError as error:
        raise _cannot_write(path, error, option) from None
    try:
        yield
    finally:
        lock.unlink(missing_ok=True)
        os.close(descriptor)
        _remove_empty(made)


def _acquire(lock: Path) -> int:
    """Lock the file at `lock`; a file that another holder removed meanwhile is no longer the lock."""
    while True:
        descriptor = os.open(lock, os.O_CREAT | os.O_RDWR, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if lock.exists() and os.fstat(descriptor).st_ino == lock.stat().st_ino:
                return descriptor
        except OSError:
            os.close(descriptor)
            raise
        os.close(descriptor)


def _remove_empty(folders: list[Path]) -> None:
    """Remove the folders, innermost first, that nothing was put into."""
    with contextlib.suppress(OSError):
        for folder in folders:
            folder.rmdir()


def _cannot_write(path: Path, error: OSError, option: str = "--out") -> BundleError:
    return BundleError(
        f"cannot write the bundle: {(error.strerror or str(error)).lower()}",
        str(path),
        f"choose a writable `{option}` with enough space",
    )
