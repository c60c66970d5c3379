from __future__ import annotations

import json
from typing import TYPE_CHECKING

from tests.support.models import classifier
from trtkit.config.load import shipped_configs
from trtkit.files import CASTS

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    import pytest

    from tests.conftest import Ran


def build(trtkit: Callable[..., Ran], workspace: Path, name: str) -> None:
    import onnx

    onnx.save(classifier(), str(workspace / "tiny.onnx"))
    (workspace / "tiny.yaml").write_text("source: {onnx: tiny.onnx}\n")
    assert trtkit("build", "tiny.yaml", "-o", f"bundles/{name}", "--quiet").code == 0


def test_everything_here_is_listed(trtkit: Callable[..., Ran], workspace: Path, own_cache: Path) -> None:
    build(trtkit, workspace, "tiny")
    (workspace / "bundles/broken").mkdir()
    (workspace / "bundles/broken/manifest.json").write_text("{}")
    rows = trtkit("list", "--json").json()
    assert [row["name"] for row in rows["configs"]] == shipped_configs()
    assert all(row["description"] for row in rows["configs"])
    broken, tiny = rows["bundles"]
    assert (broken["path"], tiny["path"], tiny["precision"]) == ("bundles/broken", "bundles/tiny", "fp32")
    assert "schema version" in broken["error"]
    assert tiny["verified"] == ""
    assert tiny["size_bytes"] > 1000
    assert rows["cache"]["path"] == str(own_cache)
    assert rows["cache"]["bundles"] == 1
    out = trtkit("list").out
    assert "not verified" in out
    assert "1 bundle, " in out
    assert str(own_cache) in out.replace("\n", "")


def test_a_config_that_needs_more_says_how_to_get_it(
    trtkit: Callable[..., Ran], workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(workspace))
    rows = {row["name"]: row for row in trtkit("list", "--json").json()["configs"]}
    assert rows["qwen3"]["fix"] == "trtkit fetch qwen3"
    assert rows["detr3d"]["fix"] == f"needs {workspace}/models/detr3d-r101"
    assert rows["vit"]["fix"] == ""
    assert rows["vit"]["missing"] == []


def test_a_folder_without_bundles(trtkit: Callable[..., Ran], workspace: Path) -> None:
    assert "no bundles in bundles" in trtkit("list").out
    (workspace / "empty").mkdir()
    assert "no bundles in empty" in trtkit("list", "empty").out
    ran = trtkit("list", "nowhere")
    assert (ran.code, ran.out) == (1, "")
    assert "error: nowhere: no such folder" in ran.err


def test_the_cache_is_emptied_once_the_user_agrees(
    trtkit: Callable[..., Ran], workspace: Path, own_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    build(trtkit, workspace, "tiny")
    assert trtkit("list", "--clean", "--json").code == 2
    monkeypatch.setattr("click.termui.visible_prompt_func", lambda _text: "n")
    assert trtkit("list", "--clean").code == 130
    assert list((own_cache / "bundles").iterdir())
    (own_cache / CASTS).mkdir()
    (own_cache / CASTS / "kept").write_bytes(b"a model that AutoCast converted")
    removed = json.loads(trtkit("list", "--clean", "--yes", "--json").out)["removed"]
    assert removed["bundles"] == 1
    assert not any((own_cache / name).exists() for name in ("bundles", CASTS))
    assert (workspace / "bundles/tiny/manifest.json").is_file()
    assert trtkit("list", "--clean", "--yes").out == "removed 0 bundles, 0 B\n"
