"""Damaged or modified bundles are not trusted."""

from __future__ import annotations

import json
import os
import shutil
from typing import TYPE_CHECKING, Any

import pytest

from tests.support import models
from trtkit.files import replace_file

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.conftest import Ran


def edit_manifest(bundle: Path, change: Callable[[Any], object]) -> None:
    data = json.loads((bundle / "manifest.json").read_text())
    change(data)
    (bundle / "manifest.json").write_text(json.dumps(data))


def test_changed_plan_is_refused_by_its_hash(bundle: Path, refuses: Callable[..., str]) -> None:
    plan = bundle / "engines/m.plan"
    replace_file(plan, plan.read_bytes()[:-1] + b"!")  # the cache's hard link stays as it was
    assert refuses("inspect", "b") == (
        "b/engines/m.plan: the file has changed since the build: SHA-256 mismatch\nfix: build the bundle again"
    )


def test_missing_plan_is_refused(bundle: Path, refuses: Callable[..., str]) -> None:
    (bundle / "engines/m.plan").unlink()
    assert refuses("inspect", "b") == (
        "b/engines/m.plan: cannot be read: No such file or directory\nfix: build the bundle again"
    )


def test_plan_outside_the_bundle_is_refused(bundle: Path, refuses: Callable[..., str]) -> None:
    def move(data: dict[str, Any]) -> None:
        data["engines"][0]["path"] = data["stages"][0]["engine"] = "../../evil.plan"

    edit_manifest(bundle, move)
    assert refuses("inspect", "b") == "b/../../evil.plan: the manifest lists a file outside the bundle"


@pytest.mark.parametrize("command", ["inspect", "verify", "bench", "deploy", "plan"])
def test_changed_layers_are_refused_by_their_hash(command: str, bundle: Path, refuses: Callable[..., str]) -> None:
    (bundle / "network.json").write_text((bundle / "network.json").read_text() + " ")
    words = {"bench": ["--unverified", "-q"], "deploy": ["--to", "triton", "--repository", "r", "-q"], "plan": ["-q"]}
    assert refuses(command, "b", *words.get(command, [])) == (
        "b/network.json: the file has changed since the build: SHA-256 mismatch\nfix: build the bundle again"
    )


@pytest.mark.parametrize("kind", ["file", "link", "pipe"])
def test_file_that_the_manifest_does_not_list_is_refused(kind: str, bundle: Path, refuses: Callable[..., str]) -> None:
    planted = bundle / "network/more"
    {"file": planted.touch, "link": lambda: planted.symlink_to("x"), "pipe": lambda: os.mkfifo(planted)}[kind]()
    said = refuses("inspect", "b")
    if kind == "link":
        assert said == "b/network/more: is a symbolic link\nfix: replace it with the file or folder itself"
    else:
        assert said == "b/network/more: the manifest does not list this file\nfix: remove it"


@pytest.mark.parametrize("name", ["manifest.json", "network.json", "engines/m.plan"])
def test_pipe_in_the_place_of_a_file_is_refused(name: str, bundle: Path, refuses: Callable[..., str]) -> None:
    (bundle / name).unlink()
    os.mkfifo(bundle / name)
    said = refuses("inspect", "b")
    assert said.startswith(f"b/{name}: ")
    assert "ot a regular file" in said or "does not list this file" in said


def test_engine_and_network_without_a_digest_are_refused(bundle: Path, refuses: Callable[..., str]) -> None:
    damaged = "b/manifest.json: the manifest is damaged: : Value error, "
    edit_manifest(bundle, lambda data: data["stages"][0].update(engine="evil.plan"))
    assert refuses("inspect", "b").startswith(f"{damaged}file `evil.plan` has no digest")
    edit_manifest(bundle, lambda data: data["stages"][0].update(engine=data["engines"][0]["path"]))
    edit_manifest(bundle, lambda data: data["stages"][0]["onnx"].update(parsed="evil.onnx"))
    assert refuses("inspect", "b").startswith(f"{damaged}file `evil.onnx` has no digest")


def test_cached_bundle_of_another_model_is_not_restored(
    bundle: Path, workspace: Path, own_cache: Path, trtkit: Callable[..., Ran]
) -> None:
    models.save(models.classifier(), workspace / "other.onnx")
    (workspace / "other.yaml").write_text("source: {onnx: other.onnx}\n")
    assert trtkit("build", "other.yaml", "-o", "o").code == 0
    key = json.loads((workspace / "o/manifest.json").read_text())["build_key"]
    shutil.rmtree(workspace / "o")
    shutil.rmtree(own_cache / "bundles" / key)
    shutil.copytree(bundle, own_cache / "bundles" / key)
    ran = trtkit("build", "other.yaml", "-o", "o", "--json")
    assert (ran.code, ran.json()["origin"]) == (0, "built")
    assert [tensor["name"] for tensor in ran.json()["manifest"]["inputs"]] == ["images"]


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
        f"b/manifest.json: unsupported manifest schema version {version}; expected 4\n"
        "fix: build it again with this trtkit: `trtkit build CONFIG --output b`"
    )


def test_manifest_without_a_key_is_refused(bundle: Path, refuses: Callable[..., str]) -> None:
    edit_manifest(bundle, lambda data: data.pop("engines"))
    assert refuses("inspect", "b") == (
        "b/manifest.json: the manifest is damaged: engines: Field required\nfix: build the bundle again"
    )


def test_folder_without_manifest_is_no_bundle(bundle: Path, refuses: Callable[..., str]) -> None:
    assert refuses("inspect", "b/engines") == (
        "b/engines: not a bundle: `manifest.json` is missing\nfix: give a folder that `trtkit build` wrote"
    )


@pytest.mark.parametrize("folder", [".", "/"])
def test_any_folder_can_be_asked_for(folder: str, bundle: Path, refuses: Callable[..., str]) -> None:
    assert refuses("inspect", folder).startswith(f"{folder}: not a bundle: ")


def test_damaged_bundle_is_built_anew(bundle: Path, trtkit: Callable[..., Ran]) -> None:
    (bundle / "manifest.json").write_text("{")
    ran = trtkit("build", "m.yaml", "-o", "b", "--json")
    assert (ran.code, ran.json()["origin"]) == (0, "restored")
    assert trtkit("inspect", "b").code == 0
