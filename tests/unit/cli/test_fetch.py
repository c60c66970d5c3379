from __future__ import annotations

import sys
import zipfile
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.conftest import Ran


def wheel(folder: Path, name: str) -> None:
    """Write a wheel that holds one ONNX file, or what passes for one."""
    info = f"{name}-1.0.dist-info"
    with zipfile.ZipFile(folder / f"{name}-1.0-py3-none-any.whl", "w") as file:
        file.writestr(f"{name}/__init__.py", "")
        file.writestr(f"{name}/model.onnx", "onnx")
        file.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        file.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        file.writestr(f"{info}/RECORD", "")


@pytest.fixture
def pip(workspace: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Have pip take wheels from the workspace only, and install them into a folder of its own."""
    site = workspace / "site"
    monkeypatch.setenv("PIP_TARGET", str(site))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(workspace))
    monkeypatch.setattr(sys, "path", [*sys.path, str(site)])
    return site


def config(folder: Path, requires: str) -> None:
    text = f"source: {{onnx: 'package://tiny_weights/model.onnx', requires: '{requires}'}}\n"
    (folder / "tiny.yaml").write_text(text)


def test_packages_of_a_config_are_installed(trtkit: Callable[..., Ran], workspace: Path, pip: Path) -> None:
    wheel(workspace, "tiny_weights")
    config(workspace, "tiny_weights==1.0")
    missing = trtkit("fetch", "tiny.yaml", "--dry-run").out
    assert missing == "package tiny_weights==1.0: missing: pip install --no-deps tiny_weights==1.0\n"
    assert not pip.exists()
    ran = trtkit("fetch", "tiny.yaml")
    assert (ran.code, ran.out) == (0, "package tiny_weights==1.0: ready\n")
    assert (pip / "tiny_weights/model.onnx").read_text() == "onnx"
    again = trtkit("fetch", "tiny.yaml", "--json").json()
    assert (again["fetched"], again["needs"][0]["is_present"]) == (False, True)


def test_a_package_that_pip_does_not_find(refuses: Callable[..., str], workspace: Path, pip: Path) -> None:
    config(workspace, "tiny_weights==2.0")
    message = refuses("fetch", "tiny.yaml")
    assert "tiny_weights==2.0: pip failed: No matching distribution found for tiny_weights==2.0" in message
    assert "fix: pip install --no-deps tiny_weights==2.0" in message


def test_options_among_requirements_are_refused(refuses: Callable[..., str], workspace: Path, pip: Path) -> None:
    config(workspace, "--index-url=http://localhost tiny_weights")
    assert "`requires` must list packages only; got the option `--index-url=http://localhost`" in refuses(
        "fetch", "tiny.yaml"
    )


def test_a_hub_that_cannot_be_reached(
    refuses: Callable[..., str], workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("huggingface_hub")
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    message = refuses("fetch", "org/model", "-o", "weights", "--quiet")
    assert "org/model: cannot be downloaded: " in message
    assert (
        "fix: on a machine that reaches the hub, run `hf download org/model --local-dir weights`, then give that"
        in message
    )


def test_a_hub_without_its_client(
    refuses: Callable[..., str], workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    message = refuses("fetch", "org/model", "-o", "weights", "--quiet")
    assert "org/model: `huggingface_hub` is not installed" in message
    assert (
        "fix: pip install huggingface_hub, or on a machine that reaches the hub, run `hf download org/model" in message
    )


def test_shipped_configs_name_their_model_on_the_hub(
    trtkit: Callable[..., Ran], workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(workspace))
    rows = trtkit("fetch", "qwen3", "--dry-run", "--json").json()
    folder = f"{workspace}/models/Qwen3-0.6B"
    assert rows["needs"][0]["command"] == f"hf download Qwen/Qwen3-0.6B --local-dir {folder}"
    assert trtkit("fetch", "vit").out == "vit needs nothing else\n"
    assert "`source.hub`" in trtkit("fetch", "vit", "-o", "weights").err


def test_a_folder_that_only_the_user_has(
    refuses: Callable[..., str], workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(workspace))
    message = refuses("fetch", "detr3d")
    assert f"{workspace}/models/detr3d-r101: no such folder, and the config names no model on the hub" in message
