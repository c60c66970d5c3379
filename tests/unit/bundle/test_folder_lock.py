from __future__ import annotations

import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from tests.conftest import tree
from trtkit.bundle import folder_lock
from trtkit.bundle.folder_lock import atomic_folder
from trtkit.errors import BundleError

if TYPE_CHECKING:
    from pathlib import Path


def fill(out: Path, text: str = "new") -> None:
    with atomic_folder(out, replaces="mark") as folder:
        (folder / "mark").write_text(text)
        assert not (out / "mark").exists() or (out / "mark").read_text() != text


def fill_half(out: Path, stop: type[BaseException]) -> None:
    with atomic_folder(out, replaces="mark") as folder:
        (folder / "mark").write_text("half")
        raise stop


def test_folder_appears_whole_with_the_parents_it_needs(tmp_path: Path) -> None:
    fill(tmp_path / "a/b/out")
    assert tree(tmp_path) == ["a", "a/b", "a/b/out", "a/b/out/mark"]


def test_marked_folder_is_replaced(tmp_path: Path) -> None:
    fill(tmp_path / "out", "old")
    (tmp_path / "out/more").touch()
    fill(tmp_path / "out", "new")
    assert tree(tmp_path) == ["out", "out/mark"]
    assert (tmp_path / "out/mark").read_text() == "new"


@pytest.mark.parametrize("stop", [RuntimeError, KeyboardInterrupt])
def test_failed_block_leaves_nothing_and_what_stood_there(stop: type[BaseException], tmp_path: Path) -> None:
    fill(tmp_path / "out", "old")
    for out in (tmp_path / "out", tmp_path / "deep/er/out"):
        with pytest.raises(stop):
            fill_half(out, stop)
    assert tree(tmp_path) == ["out", "out/mark"]
    assert (tmp_path / "out/mark").read_text() == "old"


def test_second_holder_is_refused_until_the_first_is_done(tmp_path: Path) -> None:
    with atomic_folder(tmp_path / "out", replaces="mark"):
        with pytest.raises(BundleError) as caught, atomic_folder(tmp_path / "out", replaces="mark"):
            pass
        assert str(caught.value).startswith(f"{tmp_path}/out: another build is writing this folder\n")
        fill(tmp_path / "other")
    fill(tmp_path / "out")
    assert tree(tmp_path) == ["other", "other/mark", "out", "out/mark"]


def test_what_a_killed_build_left_is_cleaned(tmp_path: Path) -> None:
    fill(tmp_path / "out", "old")
    for left in (".out.partial/half", ".out.old/mark"):
        (tmp_path / left).parent.mkdir()
        (tmp_path / left).touch()
    (tmp_path / ".out.lock").touch()
    fill(tmp_path / "out")
    assert tree(tmp_path) == ["out", "out/mark"]


def test_folder_without_the_mark_is_kept(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out/precious").touch()
    with pytest.raises(BundleError, match="already exists and is not a bundle"):
        fill(tmp_path / "out")
    assert tree(tmp_path) == ["out", "out/precious"]


def test_link_to_a_bundle_stays_a_link(tmp_path: Path) -> None:
    fill(tmp_path / "store/v1", "old")
    (tmp_path / "out").symlink_to("store/v1")
    fill(tmp_path / "out", "new")
    assert (tmp_path / "out").is_symlink()
    assert (tmp_path / "store/v1/mark").read_text() == "new"
    assert tree(tmp_path) == ["out", "store", "store/v1", "store/v1/mark"]


def test_links_in_the_way_are_not_followed(tmp_path: Path) -> None:
    (tmp_path / "precious").mkdir()
    (tmp_path / "precious/file").touch()
    for name in (".out.partial", ".out.old"):
        (tmp_path / name).symlink_to("precious")
    fill(tmp_path / "out")
    assert tree(tmp_path) == ["out", "out/mark", "precious", "precious/file"]
    (tmp_path / ".out.lock").symlink_to("made")
    with pytest.raises(BundleError) as caught:
        fill(tmp_path / "out")
    assert str(caught.value) == f"{tmp_path}/.out.lock: the lock file is a symbolic link\nfix: remove it"
    assert not (tmp_path / "made").exists()


KILLED = """
import os, signal, sys
from pathlib import Path
from trtkit.bundle import folder_lock
changes, done = {"os.rename", "os.mkdir", "os.remove", "os.rmdir"}, 0
def kill(event, _arguments):
    global done
    done += event in changes
    if event in changes and done == int(sys.argv[2]):
        os.kill(os.getpid(), signal.SIGKILL)
if sys.argv[3] != "True":
    folder_lock.exchange = lambda _first, _second: False
sys.addaudithook(kill)
with folder_lock.atomic_folder(Path(sys.argv[1]), replaces="mark") as folder:
    (folder / "mark").write_text("new")
"""


def killed_fill(out: Path, step: int, *, has_exchange: bool) -> bool:
    """Replace `out` in a process that is killed before its `step`-th change to a file; whether it was."""
    ended = subprocess.run([sys.executable, "-c", KILLED, str(out), str(step), str(has_exchange)], check=False)
    assert ended.returncode in (0, -signal.SIGKILL)
    return ended.returncode != 0


@pytest.mark.parametrize("has_exchange", [True, False])
def test_a_replacement_killed_at_any_step_loses_nothing(
    has_exchange: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With one step there is always a bundle in place; with two renames the next build puts the old one back."""
    if not has_exchange:
        monkeypatch.setattr(folder_lock, "exchange", lambda _first, _second: False)
    fill(tmp_path / "out", "old")
    step = 1
    while killed_fill(tmp_path / "out", step, has_exchange=has_exchange):
        assert (tmp_path / "out/mark").exists() or not has_exchange
        with pytest.raises(RuntimeError):
            fill_half(tmp_path / "out", RuntimeError)  # a build that fails leaves what stood there
        assert tree(tmp_path) == ["out", "out/mark"]
        assert (tmp_path / "out/mark").read_text() in {"old", "new"}
        step += 1
    assert step > 4
