from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.conftest import tree
from trtkit.engine.folder_lock import atomic_folder
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
    for left in (".out.partial/half", ".out.old/mark"):
        (tmp_path / left).parent.mkdir()
        (tmp_path / left).touch()
    (tmp_path / ".out.lock").touch()
    fill(tmp_path / "out")
    assert tree(tmp_path) == ["out", "out/mark"]


def test_folder_without_the_mark_is_kept(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out/precious").touch()
    with pytest.raises(BundleError, match="is there already and is no bundle"):
        fill(tmp_path / "out")
    assert tree(tmp_path) == ["out", "out/precious"]


def test_link_to_a_bundle_stays_a_link(tmp_path: Path) -> None:
    fill(tmp_path / "store/v1", "old")
    (tmp_path / "out").symlink_to("store/v1")
    fill(tmp_path / "out", "new")
    assert (tmp_path / "out").is_symlink()
    assert (tmp_path / "store/v1/mark").read_text() == "new"
    assert tree(tmp_path) == ["out", "store", "store/v1", "store/v1/mark"]
