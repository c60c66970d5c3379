from __future__ import annotations

import os
from typing import TYPE_CHECKING

from trtkit.builder import cache
from trtkit.files import cache_folder

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


def bundle(folder: Path, size: int = 100) -> Path:
    (folder / "engines").mkdir(parents=True)
    (folder / "engines/m.plan").write_bytes(bytes(size))
    (folder / "manifest.json").write_text("{}")
    return folder


def test_cache_folder_follows_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/ada")
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.delenv("TRTKIT_CACHE_DIR")
    assert str(cache_folder()) == "/home/ada/.cache/trtkit"
    monkeypatch.setenv("XDG_CACHE_HOME", "/var/cache/ada")
    assert str(cache_folder()) == "/var/cache/ada/trtkit"
    monkeypatch.setenv("TRTKIT_CACHE_DIR", "/fast/disk")
    assert str(cache_folder()) == "/fast/disk"


def test_plans_are_shared_with_the_cache_and_manifests_are_not(tmp_path: Path, own_cache: Path) -> None:
    out = bundle(tmp_path / "out")
    cache.store("abc", out)
    kept = own_cache / "bundles/abc"
    assert (kept / "engines/m.plan").samefile(out / "engines/m.plan")
    assert not (kept / "manifest.json").samefile(out / "manifest.json")


def test_bundle_that_cannot_be_trusted_is_not_restored_but_dropped(tmp_path: Path, own_cache: Path) -> None:
    bundle(own_cache / "bundles/abc")
    assert not cache.restore("abc", tmp_path / "out")
    assert not (own_cache / "bundles/abc").exists()
    assert not cache.restore("unknown", tmp_path / "out")


def test_least_recently_used_bundles_go_beyond_the_limit(
    tmp_path: Path, own_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cache, "CACHE_LIMIT_GIB", 250 / 2**30)
    for age, key in enumerate(("a1", "a2")):
        os.utime(bundle(own_cache / "bundles" / key), (age, age))
    cache.store("a3", bundle(tmp_path / "out"))
    assert sorted(path.name for path in (own_cache / "bundles").iterdir()) == ["a2", "a3"]


def test_a_build_follows_from_the_families_that_users_add(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert "families" not in cache.tool_versions()
    monkeypatch.setenv("TRTKIT_FAMILIES", str(tmp_path))
    digests = []
    for scale in (1, 2):
        (tmp_path / "mine.py").write_text(f"SCALE = {scale}\n", encoding="utf-8")
        digests.append(cache.tool_versions()["families"])
    assert digests[0] != digests[1]


def test_a_build_follows_from_every_module_of_trtkit(tmp_path: Path) -> None:
    digests = set()
    for name, text in (("network/a.py", "X = 1\n"), ("network/a.py", "X = 2\n"), ("models/a.py", "X = 1\n")):
        package = tmp_path / str(len(digests))
        (package / name).parent.mkdir(parents=True)
        (package / name).write_text(text, encoding="utf-8")
        digests.add(cache.code_digest(package))
    assert len(digests) == 3


def test_tool_versions_name_what_takes_part_in_a_build() -> None:
    versions = cache.tool_versions()
    assert {"python", "trtkit", "onnx", "onnxslim"} <= set(versions)
    assert all(versions.values())
