"""Two servers for this folder: one with a chat model, one with classifiers, hybrids, and plans of full TensorRT."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import pytest

from tests.support.triton import python_model, serving
from tests.support.triton_models import DOUBLES, TENSORS

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.support.triton import Served
    from trtkit import LLM

HYBRID = "source: {{hf: {folder}}}\ncompose: {compose}\nprofiles: [{{batch: [1, 2, 4]}}]\n"


@pytest.fixture(scope="session")
def vision_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the bundles `tiny`, `fused` and `chained` (hybrids), and copies for full TensorRT."""
    from tests.support.deployments import as_tensorrt, build, classifier
    from tests.support.hybrids import case_of, saved

    folder = tmp_path_factory.mktemp("vision")
    saved(case_of("ViTForImageClassification"), folder / "vit")
    for compose in ("fused", "chained"):
        (folder / f"{compose}.yaml").write_text(HYBRID.format(folder=folder / "vit", compose=compose))
        build(folder / f"{compose}.yaml", folder / compose)
    for bundle in (classifier(folder), folder / "chained"):
        as_tensorrt(shutil.copytree(bundle, folder / f"native_{bundle.name}"))
    return folder


@pytest.fixture(scope="session")
def served(tiny_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A server with the chat model. Tests that change a server or repository start their own."""
    words = (tiny_folder / "bundle", "--name", "chat", "--set", "llm.max_queue=8")
    with serving(deployed(tmp_path_factory.mktemp("models"), words)) as running:
        yield running


@pytest.fixture(scope="session")
def served_vision(vision_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A server with all vision models, separate from the chat model's so that `make test` need not start it."""
    repository = deployed(
        tmp_path_factory.mktemp("models"),
        (vision_folder / "tiny",),
        (vision_folder / "tiny", "--as", "tensors", "--name", "plain"),
        (vision_folder / "fused",),
        (vision_folder / "chained",),
        (vision_folder / "native_tiny", "--name", "native_tiny", "--set", "cuda_graphs=true", "--instances", "2"),
        (vision_folder / "native_chained", "--name", "native_chained"),
    )
    with serving(repository) as running:
        yield running


def deployed(repository: Path, *models: tuple[object, ...]) -> Path:
    """Deploy models, each given as arguments of `trtkit deploy`; return their repository."""
    from trtkit.cli.main import main

    for words in models:
        main(["deploy", *map(str, words), "--repository", str(repository), "-q"])
    return repository


@pytest.fixture(scope="session")
def llm(tiny_folder: Path) -> Iterator[LLM]:
    """The served chat model in this process."""
    from trtkit import LLM

    with LLM(tiny_folder / "bundle") as opened:
        yield opened


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A repository with a single model, which doubles its input."""
    python_model(tmp_path / "models", "doubles", DOUBLES, TENSORS)
    return tmp_path / "models"
