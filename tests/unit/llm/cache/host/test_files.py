"""Files of caches: found by the next process, within their limit; what is damaged is removed, and never read."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import pytest

from tests.support.cache_files import IDENTITY, LIMIT, block, key_of, preimage_of
from trtkit.errors import RequestError
from trtkit.llm.cache.held_blocks import digest
from trtkit.llm.cache.host import FileTier

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[Callable[..., FileTier]]:
    """Open the same folder again and again, as one process after another would."""
    last: list[FileTier] = []

    def again(limit: int = LIMIT, identity: bytes = IDENTITY) -> FileTier:
        for files in last:
            files.close()
        last[:] = [FileTier(tmp_path, limit, identity)]
        return last[0]

    yield again
    for files in last:
        files.close()


def written(tmp_path: Path) -> list[Path]:
    return sorted(path for path in tmp_path.rglob("*") if path.is_file() and path.name != "lock")


def test_what_was_written_is_found_by_the_next_process_and_only_for_the_same_model(
    opened: Callable[..., FileTier],
) -> None:
    files = opened()
    files.put(preimage_of(1), 16, block(1))
    files.flush()
    assert key_of(1) in opened()
    files = opened()
    assert (files.read(key_of(1)), files.read(key_of(2)), files.lengths) == (block(1), None, {16})
    assert key_of(1) not in opened(identity=bytes([1]) * 32)
    assert opened().read(key_of(1)) == block(1)


def test_the_least_recently_used_files_are_removed(opened: Callable[..., FileTier], tmp_path: Path) -> None:
    files = opened()
    for number in range(30):
        files.put(preimage_of(number), 16, block(number))
        files.flush()
        assert files.read(key_of(0)) == block(0)  # the first is used all the time
        assert sum(path.stat().st_size for path in written(tmp_path)) == files.size_bytes <= LIMIT
    kept = [number for number in range(30) if key_of(number) in files]
    assert kept == [0, *range(17, 30)]
    assert len(opened(limit=1_000_000)) == 4


@pytest.mark.parametrize(
    "damage",
    [
        lambda path, data: path.write_bytes(data[:-1]),
        lambda path, data: path.write_bytes(data[:100]),
        lambda path, _: path.write_bytes(b""),
        lambda path, data: path.write_bytes(data + b"x"),
        lambda path, data: path.write_bytes(data[:5000] + b"?" + data[5001:]),
        lambda path, data: path.write_bytes(b"?" + data[1:]),
        lambda path, data: path.write_bytes(data[:100] + b"?" + data[101:]),
        lambda path, _: path.unlink(),
    ],
    ids=["one byte less", "half a header", "empty", "one byte more", "another byte", "magic", "digest", "gone"],
)
@pytest.mark.parametrize("is_open", [False, True], ids=["between runs", "while open"])
def test_a_damaged_file_is_removed_and_not_read(
    damage: Callable[[Path, bytes], object], is_open: bool, opened: Callable[..., FileTier], tmp_path: Path
) -> None:
    files = opened()
    for number in (1, 2):
        files.put(preimage_of(number), 16, block(number))
    files.flush()
    (path,) = (path for path in written(tmp_path) if path.name.startswith(key_of(1).hex()))
    damage(path, path.read_bytes())
    files = files if is_open else opened()
    assert files.read(key_of(1)) is None
    assert key_of(1) not in files
    assert len(written(tmp_path)) == 1
    assert files.read(key_of(2)) == block(2)
    files.put(preimage_of(1), 16, block(1))
    files.flush()
    assert files.read(key_of(1)) == block(1)


def test_a_file_under_the_name_of_another_is_not_read(opened: Callable[..., FileTier], tmp_path: Path) -> None:
    files = opened()
    files.put(preimage_of(1), 16, block(1))
    files.flush()
    (path,) = written(tmp_path)
    path.rename(path.with_name(path.name.replace(key_of(1).hex(), key_of(2).hex())))
    files = opened()
    assert (files.read(key_of(2)), files.read(key_of(1))) == (None, None)
    assert not written(tmp_path)


@pytest.mark.parametrize("kills", [8, pytest.param(100, marks=pytest.mark.slow)])
def test_a_writer_killed_at_any_moment_leaves_valid_files(kills: int, tmp_path: Path) -> None:
    """Each run writes other blocks, in which older ones give way, until it is killed."""
    r, found, torn = random.Random(4), 0, 0
    for run in range(kills):
        first = 1000 * run
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.cache_files", str(tmp_path), str(first)],
            stdout=subprocess.PIPE,
            text=True,
        )
        assert process.stdout is not None
        process.stdout.readline()
        time.sleep(r.random() * 0.02)
        os.kill(process.pid, signal.SIGKILL)
        process.communicate()
        torn += any(path.suffix == ".new" for path in written(tmp_path))
        files = FileTier(tmp_path, LIMIT, IDENTITY)
        assert not [path for path in written(tmp_path) if path.suffix == ".new"]
        assert sum(path.stat().st_size for path in written(tmp_path)) == files.size_bytes <= LIMIT
        assert any(key_of(each) in files for each in range(first, first + 1000))
        for each in range(first, first + 1000):
            data = files.read(key_of(each))
            assert data in (None, block(each))
            found += data is not None
        assert files.failures == 0
        files.close()
    assert found > kills
    assert torn > 0, "no kill came while a file was written"


def test_a_folder_is_one_process_s_own(opened: Callable[..., FileTier], tmp_path: Path) -> None:
    opened()
    with pytest.raises(RequestError, match="another process uses this folder for caches of this model"):
        FileTier(tmp_path, LIMIT, IDENTITY)
    (tmp_path / "file").write_text("")
    with pytest.raises(RequestError, match="cannot be written: not a directory"):
        FileTier(tmp_path / "file", LIMIT, IDENTITY)


def test_nobody_else_may_read_the_folder(opened: Callable[..., FileTier], tmp_path: Path) -> None:
    files = opened()
    files.put(preimage_of(1), 16, block(1))
    files.flush()
    assert [path.stat().st_mode & 0o777 for path in tmp_path.iterdir()] == [0o700]
    assert {path.stat().st_mode & 0o777 for path in tmp_path.glob("*/*.kv")} == {0o600}


def test_a_folder_under_the_name_of_a_file_is_left_alone(opened: Callable[..., FileTier], tmp_path: Path) -> None:
    opened().put(preimage_of(1), 16, block(1))
    (folder,) = tmp_path.iterdir()
    for name in (f"{key_of(2).hex()}.16.kv", f"{key_of(1).hex()}.17.kv", "x.new"):
        (folder / name).mkdir()
    files = opened()
    assert (len(files), files.read(key_of(1))) == (1, block(1))


def test_changes_are_all_files_first_then_those_that_come_and_go(
    opened: Callable[..., FileTier], tmp_path: Path
) -> None:
    files = opened()
    files.put(preimage_of(1), 16, block(1))
    files.put(preimage_of(2), 16, block(2))
    files.flush()
    files = opened()
    (second,) = (path for path in written(tmp_path) if path.name.startswith(key_of(2).hex()))
    data = second.read_bytes()
    second.write_bytes(data[:152] + b"?" + data[153:])  # the first byte of what its key is the digest of
    assert files.changes() == [(key_of(1), preimage_of(1))]
    assert files.read(key_of(2)) is None
    for number in range(3, 18):
        files.put(preimage_of(number), 16, block(number))
    files.flush()
    changes = files.changes()
    assert changes[0] == (key_of(2), None)
    held = {key_of(1)}
    for key, preimage in changes[1:]:
        assert preimage is None or key == digest(preimage)
        held.add(key) if preimage is not None else held.remove(key)
    assert held == {key_of(number) for number in range(1, 18) if key_of(number) in files}
    assert key_of(1) not in held
    assert files.changes() == []
