"""Fill a folder atomically, under a lock against other processes."""

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

from trtkit.errors import BundleError
from trtkit.files import exchange, open_lock, remove_tree


@contextlib.contextmanager
def atomic_folder(path: Path, *, replaces: str) -> Iterator[Path]:
    """Yield a temporary folder next to `path` that replaces it if the block succeeds, and is removed if it fails.

    replaces: the file that an existing folder must hold to be replaced. Raises BundleError if `path` is in use by
    another build or holds something else, or if its parent is not writable.
    """
    if path.is_dir() and (path.is_symlink() or not path.name):
        path = path.resolve()  # a link to a bundle stays a link; `.` has no name to derive the neighbor's from
    with locked(path):
        _recover(path)
        _check_replaceable(path, replaces)
        partial = path.parent / f".{path.name}.partial"
        remove_tree(partial)  # left by a killed build: the lock guarantees that nobody is filling it
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
            remove_tree(partial)


def _old(path: Path) -> Path:
    """Return where the old folder is between the two renames."""
    return path.parent / f".{path.name}.old"


def _swap(partial: Path, path: Path) -> None:
    """Replace `path` by `partial`: in one step if the file system supports it, else by two renames."""
    if path.exists() and not exchange(partial, path):
        path.rename(_old(path))
    if partial.exists() and not path.exists():
        partial.rename(path)
    remove_tree(_old(path))


def _recover(path: Path) -> None:
    """Restore the folder that a build left under another name when it was killed between its two renames."""
    old = _old(path)
    if old.is_dir() and not old.is_symlink() and not path.exists() and not path.is_symlink():
        old.rename(path)
    remove_tree(old)


def _check_replaceable(path: Path, marker: str) -> None:
    """Refuse to replace a folder that trtkit did not write."""
    if path.is_dir() and (not any(path.iterdir()) or (path / marker).is_file()):
        return
    if path.exists() or path.is_symlink():
        raise BundleError("already exists and is not a bundle", str(path), "choose another `--output`, or remove it")


@contextlib.contextmanager
def locked(path: Path, busy: str = "another build is writing this folder", option: str = "--output") -> Iterator[None]:
    """Hold `path`'s lock file; the system releases it when the process dies.

    Raises BundleError with the text `busy` while another process holds it. option: the command-line option that chooses
    the folder.
    """
    lock = path.parent / f".{path.name}.lock"
    new_parents = [parent for parent in path.parents if not parent.exists()]
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = _acquire(lock)
    except BlockingIOError:
        raise BundleError(busy, str(path), f"wait for it, or choose another `{option}`") from None
    except OSError as error:
        if lock.is_symlink():
            raise BundleError("the lock file is a symbolic link", str(lock), "remove it") from None
        raise _cannot_write(path, error, option) from None
    try:
        yield
    finally:
        lock.unlink(missing_ok=True)
        os.close(descriptor)
        _remove_empty(new_parents)


def _acquire(lock: Path) -> int:
    """Lock the file at `lock`; retry if its last holder has removed it, since it is then no longer the lock."""
    while True:
        descriptor = open_lock(lock)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if lock.exists() and os.path.samestat(os.fstat(descriptor), lock.lstat()):
                return descriptor
        except OSError:
            os.close(descriptor)
            raise
        os.close(descriptor)


def _remove_empty(folders: list[Path]) -> None:
    """Remove those of the folders that are empty, innermost first."""
    with contextlib.suppress(OSError):
        for folder in folders:
            folder.rmdir()


def _cannot_write(path: Path, error: OSError, option: str = "--output") -> BundleError:
    return BundleError(
        f"cannot write the bundle: {(error.strerror or str(error)).lower()}",
        str(path),
        f"choose a writable `{option}` with enough space",
    )
