"""`trtkit deploy` writes a repository atomically, and refuses invalid content."""

from __future__ import annotations

import json
import multiprocessing
import shutil
import signal
from typing import TYPE_CHECKING

import pytest

from tests.conftest import tree
from tests.support.deployed_up_to import deploy_up_to
from tests.support.deployments import as_tensorrt, deployed
from trtkit.bundle.bundle import open_bundle
from trtkit.deployment.triton.deploy import DeployRequest, served_models
from trtkit.deployment.triton.options import DeployOptions
from trtkit.deployment.triton.repository_check import check_repository
from trtkit.deployment.triton.server_files import find_server

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from tests.conftest import Ran
    from trtkit.deployment.triton.served import DeployedModel

    Trtkit = Callable[..., Ran]


STEPS = ["tiny_preprocess", "tiny_engine", "tiny_postprocess", "tiny"]


@pytest.fixture
def bundle(classifier_bundle: Path, workspace: Path) -> Path:
    """A copy of the bundle, the tests' own."""
    return shutil.copytree(classifier_bundle, workspace / "tiny")


def is_whole(repository: Path) -> list[str]:
    """Return the names of the models that a server would load; all of them must be as they were deployed."""
    return [model.name for model in check_repository(repository, find_server())]


def test_a_pipeline_is_deployed_with_what_and_why(bundle: Path, trtkit: Trtkit, workspace: Path) -> None:
    found = deployed(trtkit, bundle)
    assert [(model["name"], model["kind"], model["backend"]) for model in found["models"]] == [
        ("tiny_preprocess", "preprocess", "python"),
        ("tiny_engine", "model", "python"),
        ("tiny_postprocess", "postprocess", "python"),
        ("tiny", "pipeline", "ensemble"),
    ]
    assert found["models"][-1]["reasons"] == ["tiny: image in, class_id, score, label out; 3 steps"]
    assert found["notes"] == [
        f"the bundle was not verified: `trtkit verify {bundle}`",
        "known requests: 2, answered by the runtime that is here",
    ]
    assert is_whole(workspace / "models") == sorted(STEPS)
    assert not list(workspace.glob(".*"))


def test_a_deployed_manifest_names_no_path_of_this_machine(bundle: Path, trtkit: Trtkit, workspace: Path) -> None:
    before = (bundle / "manifest.json").read_text()
    assert '"path": "/' in before
    deployed(trtkit, bundle, "--as", "tensors")
    manifest = workspace / "models" / "tiny" / "1" / "bundle" / "manifest.json"
    assert str(workspace.parent) not in manifest.read_text()
    assert '"path": "/' not in manifest.read_text()
    assert open_bundle(manifest.parent).manifest.build_key == json.loads(before)["build_key"]


def test_without_a_gpu_a_language_models_manifest_names_the_source_it_reads(
    tiny_bundle: Path, trtkit: Trtkit, workspace: Path
) -> None:
    source = tiny_bundle.parent / "model"
    note = f"a server here reads the weights from {source}, which the deployed manifest names"
    assert note in deployed(trtkit, tiny_bundle, "--name", "chat")["notes"]
    manifest = json.loads((workspace / "models" / "chat" / "1" / "bundle" / "manifest.json").read_text())
    assert manifest["config"]["source"]["hf"] == str(source)
    assert {file["path"] for file in manifest["sources"]} >= {f"{source}/config.json", f"{source}/tokenizer.json"}


def test_a_dry_run_shows_the_difference_and_writes_nothing(bundle: Path, trtkit: Trtkit, workspace: Path) -> None:
    deployed(trtkit, bundle, "--as", "tensors")
    before = tree(workspace)
    ran = trtkit("deploy", bundle, "--as", "tensors", "--repository", "models", "--dry-run", "--instances", 3)
    assert ran.code == 0
    changes = [line for line in ran.out.splitlines() if line[:1] in "+-"]
    assert changes[:4] == ["--- tiny/config.pbtxt", "+++ tiny/config.pbtxt", *changes[2:4]]
    assert "-# `instances`: 1 copy, on each GPU, or on the CPU without one." in changes
    assert "+  count: 3" in changes
    assert "+    versions: 2" in changes
    assert "+++ tiny/2/model.py" in changes
    assert "+++ tiny/2/bundle/engines/tiny.plan" in changes
    assert tree(workspace) == before


def test_deploying_again_adds_a_version(bundle: Path, trtkit: Trtkit, workspace: Path) -> None:
    deployed(trtkit, bundle)
    again = deployed(trtkit, bundle, "--set", "keep_versions=2")
    assert [(model["version"], model["serves"]) for model in again["models"]] == [(2, [1, 2])] * 4
    third = deployed(trtkit, bundle)
    assert [(model["version"], model["serves"]) for model in third["models"]] == [(3, [3])] * 4
    assert is_whole(workspace / "models") == sorted(STEPS)
    record = json.loads((workspace / "models/tiny_engine/3/deployment.json").read_text())
    assert (record["version"], record["model"], record["kind"]) == (3, "tiny_engine", "model")
    assert "bundle/engines/tiny.plan" in record["files"]


def test_a_rollback_serves_what_an_earlier_deployment_did(bundle: Path, trtkit: Trtkit, workspace: Path) -> None:
    """Each config.pbtxt is the one of that deployment, and a later deployment goes on counting."""
    deployed(trtkit, bundle)
    first = {name: (workspace / "models" / name / "config.pbtxt").read_text() for name in STEPS}
    deployed(trtkit, bundle, "--instances", "3")
    rolled = trtkit("deploy", "--rollback", "tiny", "--repository", "models", "--json").json()
    assert rolled["models"] == [{"model": name, "version": 1, "before": [2]} for name in STEPS]
    assert {name: (workspace / "models" / name / "config.pbtxt").read_text() for name in STEPS} == first
    assert is_whole(workspace / "models") == sorted(STEPS)
    again = trtkit("deploy", "--rollback", "tiny", "--repository", "models", "--to-version", "2")
    assert "tiny  version 2, instead of 1" in again.out
    assert "count: 3" in (workspace / "models" / "tiny_engine" / "config.pbtxt").read_text()
    third = deployed(trtkit, bundle)
    assert [(model["version"], model["serves"]) for model in third["models"]] == [(3, [3])] * 4
    assert not list((workspace / "models").rglob(".*"))


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (["tiny"], "models/tiny: no version is older than the served one, 1\nfix: versions there: 1"),
        (
            ["tiny", "--to-version", "7"],
            "models/tiny: there is no version 7 that trtkit deployed\nfix: versions there: 1",
        ),
        (["tinny"], "models: no model is called `tinny`\nfix: models there: tiny"),
    ],
)
def test_a_rollback_to_nothing_changes_nothing(
    words: list[object], error: str, bundle: Path, trtkit: Trtkit, refuses: Callable[..., str], workspace: Path
) -> None:
    deployed(trtkit, bundle, "--as", "tensors")
    assert refuses("deploy", "--repository", "models", "--rollback", *words) == error


def test_a_version_of_an_older_trtkit_is_not_rolled_back_to(
    bundle: Path, trtkit: Trtkit, refuses: Callable[..., str], workspace: Path
) -> None:
    for _ in range(2):
        deployed(trtkit, bundle, "--as", "tensors")
    path = workspace / "models/tiny/1/deployment.json"
    record = json.loads(path.read_text())
    del record["config"]
    path.write_text(json.dumps(record))
    assert "deployed before rollbacks existed\nfix: deploy its bundle again" in refuses(
        "deploy", "--repository", "models", "--rollback", "tiny"
    )


def test_a_repository_that_is_a_link_is_the_folder_behind_it(bundle: Path, workspace: Path, trtkit: Trtkit) -> None:
    (workspace / "real").mkdir()
    (workspace / "models").symlink_to("real")
    deployed(trtkit, bundle, "--as", "tensors")
    assert is_whole(workspace / "real") == ["tiny"]


def test_a_bundle_that_cannot_run_here_is_deployed_without_a_known_request(
    bundle: Path, workspace: Path, trtkit: Trtkit
) -> None:
    found = deployed(trtkit, as_tensorrt(bundle, has_plugins=True), "--as", "tensors")
    assert [model["backend"] for model in found["models"]] == ["tensorrt"]
    assert found["notes"][-1].startswith("no known request: ")
    assert tree(workspace / "models/tiny/1") == ["deployment.json", "model.plan"]


def test_a_bundle_of_a_library_that_is_not_here_has_a_known_request(
    bundle: Path, workspace: Path, trtkit: Trtkit
) -> None:
    """Its layers say what the engine must answer."""
    found = deployed(trtkit, as_tensorrt(bundle), "--as", "tensors")
    assert found["notes"][-1] == "known requests: 1, answered by the runtime that is here"
    assert "model.plan" in tree(workspace / "models/tiny/1")


def killed_deployment(models: Sequence[DeployedModel], repository: Path, step: int) -> bool:
    """Deploy in a process that is killed before its `step`-th change to a file; whether it was."""
    context = multiprocessing.get_context("forkserver")  # a test's own process may be too large to be forked
    context.set_forkserver_preload(["trtkit.cli.main", "trtkit.deployment.triton.deploy"])
    child = context.Process(target=deploy_up_to, args=(models, repository, step))
    child.start()
    child.join()
    return child.exitcode == -signal.SIGKILL


@pytest.mark.parametrize("stride", [4, pytest.param(1, marks=pytest.mark.slow)])
def test_a_deployment_killed_at_any_step_leaves_what_loads(bundle: Path, workspace: Path, stride: int) -> None:
    """First deployment and second one, killed at changes: what is there is whole, and the next one works."""
    repository, kept = workspace / "models", workspace / "kept"
    models, steps = served_models(DeployRequest(open_bundle(bundle)), DeployOptions()), {}
    for round_ in ("first", "second"):
        step = 1
        while killed_deployment(models, repository, step):
            there = is_whole(repository) if repository.exists() and any(repository.iterdir()) else []
            # Those that others use come first, so that an ensemble never lacks a step.
            assert set(there) == set(STEPS if round_ == "second" else STEPS[: len(there)])
            shutil.rmtree(repository, ignore_errors=True)
            if round_ == "second":
                shutil.copytree(kept, repository)
            step += stride
        assert is_whole(repository) == sorted(STEPS)
        steps[round_] = step
        shutil.rmtree(kept, ignore_errors=True)
        shutil.copytree(repository, kept)
    assert min(steps.values()) > 30
    versions = {path.parent.name: int(path.name) for path in repository.glob("*/2")}
    assert versions == dict.fromkeys(STEPS, 2)
    assert [path.name for path in workspace.iterdir() if path.name.endswith(".partial")] == []
