"""A bundle that was damaged or changed is not trusted."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from tests import models

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.conftest import Ran


@pytest.fixture
def bundle(workspace: Path, trtkit: Callable[..., Ran]) -> Path:
    models.save(models.matmul(), workspace / "m.onnx")
    (workspace / "m.yaml").write_text("source: {onnx: m.onnx}\n")
    assert trtkit("build", "--config", "m.yaml", "--out", "b").code == 0
    return workspace / "b"


def edit_manifest(bundle: Path, change: Callable[[Any], object]) -> None:
    data = json.loads((bundle / "manifest.json").read_text())
    change(data)
    (bundle / "manifest.json").write_text(json.dumps(data))


def test_changed_plan_is_refused_by_its_hash(bundle: Path, refuses: Callable[..., str]) -> None:
    plan = bundle / "engines/m.plan"
    plan.write_bytes(plan.read_bytes()[:-1] + b"!")
    assert refuses("inspect", "b") == (
        "b/engines/m.plan: the file is not the one that was built: its SHA-256 differs\nfix: build the bundle again"
    )


def test_missing_plan_is_refused(bundle: Path, refuses: Callable[..., str]) -> None:
    (bundle / "engines/m.plan").unlink()
    assert refuses("inspect", "b") == (
        "b/engines/m.plan: cannot be read: No such file or directory\nfix: build the bundle again"
    )


def test_plan_outside_the_bundle_is_refused(bundle: Path, refuses: Callable[..., str]) -> None:
    edit_manifest(bundle, lambda data: data["engines"][0].update(path="../../evil.plan"))
    assert refuses("inspect", "b") == "b/../../evil.plan: the manifest names a file outside the bundle"


def test_manifest_that_is_no_json_is_refused(bundle: Path, refuses: Callable[..., str]) -> None:
    (bundle / "manifest.json").write_text("{")
    message = refuses("inspect", "b")
    assert message.startswith("b/manifest.json: the manifest cannot be read: Expecting property name")
    assert message.endswith("fix: build the bundle again")


@pytest.mark.parametrize("text", ["[]", "{}", '{"schema_version": 99}'])
def test_manifest_of_another_version_is_refused(text: str, bundle: Path, refuses: Callable[..., str]) -> None:
    (bundle / "manifest.json").write_text(text)
    version = "99" if "99" in text else "None"
    assert refuses("inspect", "b") == (
        f"b/manifest.json: manifest schema version {version} is not 1\nfix: build the bundle again with this trtkit"
    )


def test_manifest_without_a_key_is_refused(bundle: Path, refuses: Callable[..., str]) -> None:
    edit_manifest(bundle, lambda data: data.pop("engines"))
    assert refuses("inspect", "b") == (
        "b/manifest.json: the manifest is damaged: engines: Field required\nfix: build the bundle again"
    )


def test_folder_without_manifest_is_no_bundle(bundle: Path, refuses: Callable[..., str]) -> None:
    assert refuses("inspect", "b/engines") == (
        "b/engines: no bundle here: `manifest.json` is missing\nfix: give a folder that `trtkit build` made"
    )


@pytest.mark.parametrize("folder", [".", "/"])
def test_any_folder_can_be_asked_for(folder: str, bundle: Path, refuses: Callable[..., str]) -> None:
    assert refuses("inspect", folder).startswith(f"{folder}: no bundle here: ")


def test_damaged_bundle_is_built_anew(bundle: Path, trtkit: Callable[..., Ran]) -> None:
    (bundle / "manifest.json").write_text("{")
    ran = trtkit("build", "--config", "m.yaml", "--out", "b", "--json")
    assert (ran.code, ran.json()["origin"]) == (0, "restored")
    assert trtkit("inspect", "b").code == 0
