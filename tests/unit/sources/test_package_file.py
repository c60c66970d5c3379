from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest

from trtkit.errors import SourceError
from trtkit.sources.package_file import resolve

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package `weighty` that would fail to import, with a model in it."""
    package = tmp_path / "site/weighty"
    (package / "models").mkdir(parents=True)
    (package / "__init__.py").write_text("raise RuntimeError('imported')\n")
    (package / "models/a.onnx").touch()
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    return package


def test_file_in_a_package_is_found_without_importing_it(installed: Path) -> None:
    assert resolve("package://weighty/models/a.onnx") == installed / "models/a.onnx"
    assert "weighty" not in sys.modules


def test_plain_path_is_itself(tmp_path: Path) -> None:
    assert resolve(str(tmp_path)) == tmp_path


def test_missing_file_lists_its_neighbours(installed: Path) -> None:
    with pytest.raises(SourceError) as caught:
        resolve("package://weighty/models/b.onnx")
    assert str(caught.value) == f"{installed}/models/b.onnx: no such file\nfix: files there: a.onnx"


@pytest.mark.parametrize(
    ("requires", "fix"),
    [("weights==1.0", "pip install --no-deps weights==1.0"), (None, "install the package that has `nobodys`")],
)
def test_missing_package_says_what_to_install(requires: str | None, fix: str) -> None:
    with pytest.raises(SourceError) as caught:
        resolve("package://nobodys/m.onnx", requires)
    assert str(caught.value) == f"package://nobodys/m.onnx: package `nobodys` is not installed\nfix: {fix}"


@pytest.mark.parametrize("path", ["package://", "package://onnx", "package://a-b/c", "package://onnx/../torch/x"])
def test_path_of_another_form_is_refused(path: str) -> None:
    with pytest.raises(SourceError) as caught:
        resolve(path)
    assert str(caught.value) == (
        f"`{path}` is not of the form `package://module/path`\nfix: name a module and a file in it"
    )
