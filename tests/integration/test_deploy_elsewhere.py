"""`trtkit deploy` for servers on other machines: messages and files."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import kubernetes_validate
import pytest
import yaml

from tests.support.deployments import as_tensorrt, classifier

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.conftest import Ran

    Run = Callable[..., Ran]


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return classifier(tmp_path_factory.mktemp("classifier"))


def test_manifests_and_an_image_are_written(bundle: Path, tmp_path: Path, trtkit: Run) -> None:
    repository, folder = tmp_path / "models", tmp_path / "cluster"
    ran = trtkit("deploy", bundle, "--repository", repository, "--kubernetes", folder, "--json")
    assert ran.code == 0, ran.err
    assert {path.name for path in folder.iterdir()} == {path.rpartition("/")[2] for path in ran.json()["kubernetes"]}
    assert "FROM nvcr.io/nvidia/tritonserver" in (folder / "Dockerfile").read_text()
    for file in folder.glob("*.yaml"):
        kubernetes_validate.validate(yaml.safe_load(file.read_text()), "1.33", strict=True)


def test_the_line_of_a_container_is_printed(bundle: Path, tmp_path: Path, trtkit: Run) -> None:
    ran = trtkit("deploy", bundle, "--repository", tmp_path / "models")
    assert "docker run --rm" in ran.out
    assert "-p 127.0.0.1:8000:8000" in ran.out
    assert "--model-control-mode=none" in ran.out


def test_a_release_that_cannot_load_the_plan_is_refused(bundle: Path, tmp_path: Path, trtkit: Run) -> None:
    copied = as_tensorrt(Path(shutil.copytree(bundle, tmp_path / "native")))
    ran = trtkit("deploy", copied, "--repository", tmp_path / "models", "--as", "tensors", "--release", "24.08")
    assert ran.code == 1
    assert "the plan needs TensorRT" in ran.err
    assert not (tmp_path / "models").exists()


def test_a_release_that_there_is_not_is_refused(bundle: Path, tmp_path: Path, trtkit: Run) -> None:
    ran = trtkit("deploy", bundle, "--repository", tmp_path / "models", "--release", "20.01")
    assert ran.code == 1
    assert "--release: unknown Triton release `20.01`" in ran.err
