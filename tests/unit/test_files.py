"""Files are written atomically and never through links."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from tests.conftest import tree
from trtkit.errors import TrtkitError
from trtkit.files import open_lock, replace_file, scratch_folder, write_output


@pytest.fixture
def precious(tmp_path: Path) -> Path:
    path = tmp_path / "precious"
    path.write_text("keep")
    return path


def test_a_link_in_the_place_of_a_file_is_replaced_and_not_followed(tmp_path: Path, precious: Path) -> None:
    for name in ("out", ".out.partial"):
        (tmp_path / name).symlink_to(precious)
    replace_file(tmp_path / "out", b"new")
    assert (precious.read_text(), (tmp_path / "out").read_text()) == ("keep", "new")
    assert not (tmp_path / "out").is_symlink()
    assert tree(tmp_path) == [".out.partial", "out", "precious"]


def test_a_write_that_fails_leaves_the_old_file_alone(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    with pytest.raises(TrtkitError) as caught:
        write_output(tmp_path / "out", "new")
    assert str(caught.value) == (
        f"{tmp_path}/out: cannot be written: is a directory\nfix: choose a writable folder with space"
    )
    assert tree(tmp_path) == ["out"]


def test_a_pipe_is_written_to_and_stays(tmp_path: Path) -> None:
    pipe, texts = tmp_path / "pipe", []
    os.mkfifo(pipe)
    reader = threading.Thread(target=lambda: texts.append(pipe.read_text()))
    reader.start()
    write_output(pipe, "text")
    reader.join()
    assert (texts, pipe.is_fifo()) == (["text"], True)


def test_a_lock_that_is_a_link_or_a_pipe_is_refused(tmp_path: Path, precious: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "made")
    os.mkfifo(tmp_path / "pipe")
    for name in ("link", "pipe"):
        with pytest.raises(OSError, match=r"symbolic links|not a file"):
            open_lock(tmp_path / name)
    assert not (tmp_path / "made").exists()


HOLDS = """\
import sys, time
from trtkit.files import scratch_folder
with scratch_folder() as folder:
    (folder / "large").write_text("x")
    print(folder, flush=True)
    time.sleep(600)
"""


def test_what_killed_processes_left_in_the_temporary_folder_is_removed_by_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    command = [sys.executable, "-c", HOLDS]
    processes = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    killed, running = (Path(process.stdout.readline().strip()) for process in processes if process.stdout)
    try:
        processes[0].send_signal(signal.SIGKILL)
        processes[0].wait()
        with scratch_folder() as young:
            assert killed.exists(), "a folder that is new may be one that its owner has not locked yet"
        for folder in (killed, running):
            os.utime(folder, (0, 0))
        with scratch_folder() as folder:
            assert {path.name for path in tmp_path.iterdir()} == {folder.name, running.name}
        assert not young.exists()
    finally:
        processes[1].kill()
        processes[1].wait()
