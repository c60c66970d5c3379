"""The command that adds an extra, for every way in which trtkit may have been installed."""

from __future__ import annotations

import importlib.metadata
import json
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from trtkit.cli.options import check_page
from trtkit.extras import install, missing_package


@dataclass(frozen=True)
class Installed:
    """What pip left: PEP 610's origin of the package, None if it came from an index."""

    origin: dict[str, object] | None

    def read_text(self, name: str) -> str | None:
        assert name == "direct_url.json"
        return None if self.origin is None else json.dumps(self.origin)


@pytest.mark.parametrize(
    ("origin", "command"),
    [
        (None, "pip install 'trtkit[onnx,llm]'"),
        ({"url": "file:///a/trtkit-1-py3-none-any.whl", "archive_info": {}}, "pip install 'trtkit[onnx,llm]'"),
        ({"url": "file:///a/my%20clone", "dir_info": {"editable": True}}, "pip install -e '/a/my clone[onnx,llm]'"),
    ],
)
def test_the_command_fits_how_trtkit_was_installed(
    origin: dict[str, object] | None, command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.metadata, "distribution", lambda _name: Installed(origin))
    assert install("onnx", "llm") == command


def test_a_library_that_misses_a_package_in_words_of_its_own() -> None:
    """As ModelOpt does, whose own advice names an extra of its own."""
    try:
        try:
            raise ModuleNotFoundError("No module named 'onnxscript'", name="onnxscript")
        except ModuleNotFoundError as error:
            raise ImportError("install optional `[onnx]` dependencies") from error
    except ImportError as error:
        missing = missing_package(error)
    assert missing is not None
    assert missing.what == "this needs `onnxscript`, which is not installed"
    assert missing_package(ImportError("broken")) is None


def test_a_module_that_no_extra_brings_is_left_alone() -> None:
    assert missing_package(ModuleNotFoundError("No module named 'mine'", name="mine")) is None
    missing = missing_package(ModuleNotFoundError("No module named 'PIL.Image'", name="PIL.Image"))
    assert missing is not None
    assert (missing.what, missing.fix) == ("this needs `pillow`, which is not installed", install("verify"))


def test_a_page_that_cannot_be_drawn_is_refused_before_the_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "altair", None)
    for name in ("page", "charts"):
        monkeypatch.delitem(sys.modules, f"trtkit.report.{name}", raising=False)
    with pytest.raises(ImportError) as refused:
        check_page(Path("report.html"))
    missing = missing_package(refused.value)
    assert missing is not None
    assert (missing.what, missing.fix) == ("this needs `altair`, which is not installed", install("report"))
