"""Code named in a bundle, or in the current folder, runs only if the user asks for it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.conftest import Ran

pytestmark = pytest.mark.children

FACTORY = """\
import pathlib, torch
pathlib.Path("ran").touch()

class Rows(torch.nn.Module):
    def forward(self, x):
        return x @ torch.arange(1.0, 13).reshape(3, 4)
"""


@pytest.fixture
def with_factory(bundle: Path, workspace: Path) -> Path:
    """A bundle whose manifest names a module in a package of the current folder as its source."""
    (workspace / "evil").mkdir()
    (workspace / "evil/__init__.py").write_text('import pathlib\npathlib.Path("ran").touch()\n')
    (workspace / "evil/rows.py").write_text(FACTORY)
    data = json.loads((bundle / "manifest.json").read_text())
    data["config"]["source"] = {"torch": {"factory": "evil.rows:Rows", "inputs": {"x": {"shape": ["batch", 3]}}}}
    (bundle / "manifest.json").write_text(json.dumps(data))
    return bundle


def test_verify_does_not_run_the_factory_of_a_bundle(
    with_factory: Path, workspace: Path, trtkit: Callable[..., Ran]
) -> None:
    ran = trtkit("verify", "b", "--no-corners", "--json")
    assert (ran.code, (workspace / "ran").exists()) == (0, False)
    assert ran.json()["reference"] == (
        "ONNX Runtime on the network's own ONNX file; "
        "the bundle's source is code, `evil.rows:Rows`, which only `--trust-source` runs"
    )


def test_verify_refuses_the_factory_of_a_bundle_by_name(
    with_factory: Path, workspace: Path, refuses: Callable[..., str]
) -> None:
    assert refuses("verify", "b", "--against", "torch", "-q") == (
        "--against torch: the bundle's source is code, `evil.rows:Rows`, which only `--trust-source` runs\n"
        "fix: add it if you trust whoever made the bundle"
    )


def test_bench_does_not_run_the_factory_of_a_bundle(
    with_factory: Path, workspace: Path, refuses: Callable[..., str]
) -> None:
    assert refuses("bench", "b", "--compare", "torch", "--unverified", "-q") == (
        "--compare torch: the bundle's source is code, `evil.rows:Rows`, which only `--trust-source` runs\n"
        "fix: add it if you trust whoever made the bundle"
    )


def test_trust_source_runs_the_factory_from_the_current_folder(
    with_factory: Path, workspace: Path, trtkit: Callable[..., Ran]
) -> None:
    data = json.loads((with_factory / "manifest.json").read_text())
    files = [workspace / "evil/__init__.py", workspace / "evil/rows.py"]
    from trtkit.files import sha256_of

    data["sources"] = [
        {"path": str(file), "size_bytes": file.stat().st_size, "sha256": sha256_of(file)} for file in files
    ]
    (with_factory / "manifest.json").write_text(json.dumps(data))
    ran = trtkit("verify", "b", "--no-corners", "--trust-source", "--json")
    assert (ran.code, ran.json()["reference"]) == (0, "PyTorch on evil.rows:Rows")
    assert (workspace / "ran").exists()


def test_modules_in_the_current_folder_are_not_imported_for_installed_ones(
    bundle: Path, workspace: Path, trtkit: Callable[..., Ran]
) -> None:
    planted = ("onnx", "PIL", "numpy", "tensorrt_rtx", "onnxslim")
    for name in planted:
        (workspace / f"{name}.py").write_text(f'import pathlib\npathlib.Path("ran-{name}").touch()\nraise SystemExit\n')
    assert trtkit("build", "m.yaml", "-o", "b2", "--no-cache").code == 0
    assert trtkit("inspect", "m.onnx").code == 0
    assert trtkit("verify", "b", "--no-corners").code == 0
    assert not list(workspace.glob("ran-*"))
