"""Full, read-only or obstructed disks: clear errors, and no files left behind."""

from __future__ import annotations

import os
import subprocess
from typing import TYPE_CHECKING

import pytest

from tests.conftest import tree
from tests.support import models

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.conftest import Ran

FIX = "\nfix: choose a writable `--output` with enough space"


@pytest.fixture
def config(workspace: Path) -> Path:
    models.save(models.classifier(), workspace / "m.onnx")
    path = workspace / "m.yaml"
    path.write_text("source:\n  onnx: m.onnx\n")
    return path


@pytest.fixture
def mount(tmp_path: Path) -> Iterator[Callable[[str], Path]]:
    """Mount a small file system with the given options; skip where the system does not let us."""
    mounted: list[Path] = []

    def run(options: str) -> Path:
        folder = tmp_path / f"mount{len(mounted)}"
        folder.mkdir()
        command = ["mount", "-t", "tmpfs", "-o", options, "trtkit-test", str(folder)]
        try:
            answer = subprocess.run(command, capture_output=True, text=True, check=False)
        except FileNotFoundError:
            pytest.skip("there is no `mount`")
        if answer.returncode != 0:
            pytest.skip(f"mounting is refused: {answer.stderr.strip()}")
        mounted.append(folder)
        return folder

    yield run
    for folder in mounted:
        subprocess.run(["umount", str(folder)], check=True)


@pytest.mark.children  # which write the plan
@pytest.mark.parametrize(
    ("size", "file"),
    [("4k", ".out.partial"), ("16k", ".out.partial/engines/m.plan"), ("64k", ".out.partial/engines/m.plan")],
)
def test_full_disk_names_the_file_and_is_left_as_it_was(
    size: str, file: str, config: Path, mount: Callable[[str], Path], refuses: Callable[..., str]
) -> None:
    folder = mount(f"size={size}")
    (folder / "filler").write_bytes(bytes(4096))
    message = refuses("build", config, "-o", folder / "out", "--no-cache")
    assert message == (
        f"{folder}/{file}: cannot write or read: no space left on device\n"
        "fix: free some space, or choose another `--output`"
    )
    assert tree(folder) == ["filler"]


def test_full_disk_is_told_when_the_cache_would_be_restored(
    config: Path, own_cache: Path, mount: Callable[[str], Path], trtkit: Callable[..., Ran]
) -> None:
    assert trtkit("build", config).code == 0
    folder = mount("size=64k")
    ran = trtkit("build", config, "-o", folder / "out")
    assert ran.code == 1
    assert "no space left on device" in ran.err.lower()
    assert tree(folder) == []


@pytest.mark.children
def test_full_cache_does_not_hinder_a_build(
    config: Path, mount: Callable[[str], Path], trtkit: Callable[..., Ran], monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = mount("size=32k")
    monkeypatch.setenv("TRTKIT_CACHE_DIR", str(cache))
    ran = trtkit("build", config, "--json")
    assert (ran.code, ran.json()["origin"]) == (0, "built")
    assert tree(cache) == ["bundles"]


def test_read_only_cache_is_still_read(
    config: Path, own_cache: Path, mount: Callable[[str], Path], trtkit: Callable[..., Ran],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    cache = mount("size=10m")
    monkeypatch.setenv("TRTKIT_CACHE_DIR", str(cache))
    assert trtkit("build", config).code == 0
    subprocess.run(["mount", "-o", "remount,ro", str(cache)], check=True)
    ran = trtkit("build", config, "-o", "again", "--json")
    assert (ran.code, ran.json()["origin"]) == (0, "restored")


def test_read_only_folder_is_told(config: Path, mount: Callable[[str], Path], refuses: Callable[..., str]) -> None:
    folder = mount("ro")
    message = refuses("build", config, "-o", folder / "out")
    assert message == f"{folder}/out: cannot write the bundle: read-only file system{FIX}"


def test_full_disk_leaves_no_report(
    workspace: Path, config: Path, mount: Callable[[str], Path], refuses: Callable[..., str]
) -> None:
    folder = mount("size=4k")
    (folder / "filler").write_bytes(bytes(4096))
    message = refuses("verify", config, "--html", folder / "r.html")
    assert message == (
        f"{folder}/r.html: cannot be written: no space left on device\nfix: choose a writable folder with space"
    )
    assert tree(folder) == ["filler"]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_folder_without_permission_is_told(workspace: Path, config: Path, refuses: Callable[..., str]) -> None:
    (workspace / "closed").mkdir(mode=0o555)
    message = refuses("build", config, "-o", "closed/out")
    assert message == f"closed/out: cannot write the bundle: permission denied{FIX}"


def test_parent_that_is_a_file_is_told(workspace: Path, config: Path, refuses: Callable[..., str]) -> None:
    message = refuses("build", config, "-o", "m.onnx/deep/out")
    assert message == f"m.onnx/deep/out: cannot write the bundle: not a directory{FIX}"


@pytest.mark.parametrize("kind", ["file", "folder", "link"])
def test_out_that_is_no_bundle_is_not_touched(
    kind: str, workspace: Path, config: Path, refuses: Callable[..., str]
) -> None:
    out = workspace / "out"
    if kind == "file":
        out.write_text("precious")
    elif kind == "folder":
        out.mkdir()
        (out / "thesis.tex").write_text("precious")
    else:
        out.symlink_to("nowhere/at/all")
    message = refuses("build", config, "-o", out)
    assert message == f"{out}: already exists and is not a bundle\nfix: choose another `--output`, or remove it"


def test_current_folder_is_not_replaced(workspace: Path, config: Path, refuses: Callable[..., str]) -> None:
    message = refuses("build", config, "-o", ".")
    assert message == f"{workspace}: already exists and is not a bundle\nfix: choose another `--output`, or remove it"


def test_empty_folder_is_filled(workspace: Path, config: Path, trtkit: Callable[..., Ran]) -> None:
    (workspace / "out").mkdir()
    assert trtkit("build", config, "-o", "out").code == 0
    assert (workspace / "out/manifest.json").is_file()
    assert [path for path in tree(workspace) if path.startswith(".")] == []
