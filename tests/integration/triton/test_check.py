"""`trtkit check` against a real tritonserver with a deployed bundle, and with models that differ from it."""

from __future__ import annotations

import contextlib
import shutil
from typing import TYPE_CHECKING

import numpy as np
import onnxruntime
import pytest

from tests.support import models
from tests.support.triton import python_model, serving
from tests.support.triton_models import ENSEMBLE, FAILS, FLIP_TENSORS, FLIPS, ONES, REFUSES, SPELLS, TEXT
from trtkit.bundle.bundle import open_bundle
from trtkit.bundle.known import KnownRequest, write_known
from trtkit.cli.main import main
from trtkit.extras import install

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.conftest import Ran
    from tests.support.triton import Served

    Trtkit = Callable[..., Ran]

CONFIG = "source: {onnx: tiny.onnx}\nprofiles: [{batch: [1, 2, 4]}]\n"
IMAGES, LOGITS = (
    'input {{ name: "{}" data_type: TYPE_{} dims: [{}] }}\n',
    'output { name: "logits" data_type: TYPE_FP32 dims: 5 }\n',
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the bundle `tiny` and the repository `models` that it was deployed to."""
    folder = tmp_path_factory.mktemp("check")
    models.save(models.classifier(), folder / "tiny.onnx")
    (folder / "tiny.yaml").write_text(CONFIG)
    with contextlib.chdir(folder):
        main(["build", "tiny.yaml", "-o", "tiny", "-q"])
        main(["deploy", "tiny", "--repository", "models", "-q"])
    return folder


@pytest.fixture(scope="module")
def bundle(folder: Path) -> Path:
    """The bundle, its known answer computed by ONNX Runtime."""
    images = np.random.default_rng(3).standard_normal((2, 3, 16, 16)).astype(np.float32)
    session = onnxruntime.InferenceSession(str(folder / "tiny.onnx"))
    logits = session.run(["logits"], {"images": images})[0]
    shutil.copytree(folder / "tiny", folder / "reference")
    flipped = np.ascontiguousarray(images[..., ::-1])
    requests = [
        KnownRequest({"images": images}, {"logits": logits}, 1e-4),
        KnownRequest({"pixels": flipped}, {"scores": logits}, 1e-4),
    ]
    write_known(open_bundle(folder / "reference"), requests)
    return folder / "reference"


@pytest.fixture(scope="module")
def text_bundle(folder: Path) -> Path:
    """A bundle whose known request is text."""
    shutil.copytree(folder / "tiny", folder / "text")
    question, answer = (np.array([text], dtype=object) for text in (b"is it here ?", b"isithere?"))
    write_known(open_bundle(folder / "text"), [KnownRequest({"text_input": question}, {"text_output": answer}, 0.0)])
    return folder / "text"


@pytest.fixture(scope="module")
def served(folder: Path) -> Iterator[Served]:
    """A server with the deployed bundle and models that differ from it, each in its own way."""
    repository, batch = folder / "models", "max_batch_size: 4\n"
    python_model(repository, "ones", ONES, batch + IMAGES.format("images", "FP32", "3, 16, 16") + LOGITS)
    python_model(repository, "half", ONES, batch + IMAGES.format("images", "FP16", "3, 16, 16") + LOGITS)
    python_model(repository, "renamed", ONES, batch + IMAGES.format("image", "FP32", "3, 16, 16") + LOGITS)
    python_model(
        repository, "larger", ONES, "max_batch_size: 9\n" + IMAGES.format("images", "FP32", "3, 32, 32") + LOGITS
    )
    python_model(
        repository, "batches", ONES, "max_batch_size: 9\n" + IMAGES.format("images", "FP32", "3, 16, 16") + LOGITS
    )
    python_model(repository, "refuses", REFUSES, batch + IMAGES.format("images", "FP32", "3, 16, 16") + LOGITS)
    python_model(repository, "spells", SPELLS, TEXT)
    python_model(repository, "broken", FAILS, batch + LOGITS)
    python_model(repository, "flip", FLIPS, FLIP_TENSORS)
    for name, step in (("pipeline", "tiny"), ("other-pipeline", "batches")):
        (repository / name / "1").mkdir(parents=True)
        (repository / name / "config.pbtxt").write_text(ENSEMBLE % step)
    with serving(repository) as running:
        yield running


def differences(ran: Ran) -> list[str]:
    return [line.removeprefix("  differs: ") for line in ran.out.splitlines() if line.startswith("  differs: ")]


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_a_deployed_bundle_is_right(served: Served, bundle: Path, trtkit: Trtkit, protocol: str) -> None:
    url = f"{protocol}://{served.http if protocol == 'http' else served.grpc}"
    ran = trtkit("check", url, "--model", "tiny", "--bundle", bundle)
    assert (ran.code, ran.err) == (0, "")
    assert ran.out.splitlines() == [
        f"Triton 2.51.0 at {url}",
        "tiny  version 1  ready, batches up to 4",
        "  input   images  FP32 [-1, 3, 16, 16]",
        "  output  logits  FP32 [-1, 5]",
        "  known request: answered as the bundle does",
    ]


def test_the_model_is_found_by_the_bundles_name(served: Served, bundle: Path, trtkit: Trtkit) -> None:
    ran = trtkit("check", served.grpc, "--protocol", "grpc", "--bundle", bundle, "--json")
    report = ran.json()
    assert (ran.code, report["verdict"], report["status"], report["version"]) == (0, "PASS", "right", "2.51.0")
    assert [(model["name"], model["known"]) for model in report["models"]] == [("tiny", "answered as the bundle does")]


def test_the_bundle_in_the_repository_is_right_too(served: Served, folder: Path, trtkit: Trtkit) -> None:
    ran = trtkit("check", served.http, "--bundle", folder / "models" / "tiny" / "1" / "bundle")
    assert (ran.code, differences(ran)) == (0, [])
    assert "known request: answered as the bundle does" in ran.out


@pytest.mark.parametrize(
    ("model", "said"),
    [
        ("half", ["input `images` is FP16, the bundle's is FP32"]),
        ("renamed", ["input `images` is missing; the model has `image`", "input `image` is not the bundle's"]),
        (
            "larger",
            [
                "input `images` is [-1, 3, 32, 32], the bundle's is [-1, 3, 16, 16]",
                "the model takes batches of 9, the engine of 4 at most",
            ],
        ),
    ],
)
def test_another_interface_differs(served: Served, bundle: Path, trtkit: Trtkit, model: str, said: list[str]) -> None:
    ran = trtkit("check", served.http, "--model", model, "--bundle", bundle)
    assert (ran.code, differences(ran)) == (3, said)
    assert "answered" not in ran.out


def test_another_answer_differs(served: Served, bundle: Path, trtkit: Trtkit) -> None:
    ran = trtkit("check", served.http, "--model", "ones", "--bundle", bundle)
    assert ran.code == 3
    assert "known request: answered wrongly" in ran.out
    [said] = differences(ran)
    assert said.startswith("output `logits` is off by ")
    assert said.endswith(" relative RMS error; 0.0001 is allowed")


def test_an_ensemble_is_compared_by_the_step_that_is_the_engine(served: Served, bundle: Path, trtkit: Trtkit) -> None:
    ran = trtkit("check", served.http, "--model", "pipeline", "--bundle", bundle)
    assert (ran.code, differences(ran)) == (0, [])
    assert "known request: answered as the bundle does" in ran.out


def test_an_ensemble_with_another_engine_differs(served: Served, bundle: Path, trtkit: Trtkit) -> None:
    ran = trtkit("check", served.http, "--model", "other-pipeline", "--bundle", bundle)
    assert (ran.code, differences(ran)) == (3, ["the model takes batches of 9, the engine of 4 at most"])


def test_streamed_answers_are_put_together(served: Served, text_bundle: Path, trtkit: Trtkit) -> None:
    ran = trtkit("check", f"grpc://{served.grpc}", "--model", "spells", "--bundle", text_bundle)
    assert (ran.code, differences(ran)) == (0, [])
    assert "streams its answers" in ran.out
    assert "answered as the bundle does" in ran.out


def test_streams_take_grpc(served: Served, text_bundle: Path, trtkit: Trtkit) -> None:
    ran = trtkit("check", served.http, "--model", "spells", "--bundle", text_bundle)
    assert (ran.code, ran.out) == (1, "")
    assert f"http://{served.http}: `spells` streams its answers, which needs gRPC" in ran.err
    assert "fix: give the gRPC endpoint: grpc://HOST:PORT" in ran.err


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_a_refused_request_fails(served: Served, bundle: Path, trtkit: Trtkit, protocol: str) -> None:
    url = f"{protocol}://{served.http if protocol == 'http' else served.grpc}"
    ran = trtkit("check", url, "--model", "refuses", "--bundle", bundle)
    assert (ran.code, ran.out) == (1, "")
    assert f"{url} refuses: the server refuses: " in ran.err
    assert "out of memory" in ran.err


def test_a_missing_model_fails_with_those_that_are_there(served: Served, trtkit: Trtkit) -> None:
    ran = trtkit("check", served.http, "--model", "lost")
    assert (ran.code, ran.out) == (1, "")
    assert (
        f"http://{served.http}: the server has no model `lost`; it has batches, broken, flip, half, larger" in ran.err
    )


def test_a_model_that_did_not_load_fails_with_its_reason(served: Served, trtkit: Trtkit) -> None:
    ran = trtkit("check", served.http, "--model", "broken")
    assert (ran.code, ran.err) == (1, "")
    assert ran.out.splitlines()[1].startswith(
        "broken  version 1  unavailable: Internal: ValueError: the weights are gone"
    )


def test_without_a_bundle_all_models_are_listed(served: Served, trtkit: Trtkit) -> None:
    ran = trtkit("check", served.http, "--json")
    found = {model["name"]: model["state"] for model in ran.json()["models"]}
    assert ran.code == 1  # one is broken
    assert found == {name: "UNAVAILABLE" if name == "broken" else "READY" for name in found}
    assert len(found) == 12


def test_the_other_endpoints_port_is_told(served: Served, trtkit: Trtkit) -> None:
    for url in (f"http://{served.grpc}", f"grpc://{served.http}"):
        ran = trtkit("check", url, "--timeout", 5)
        assert (ran.code, ran.out) == (1, "")
        assert f"{url}: no Triton server answers: " in ran.err


def test_a_folder_that_is_no_bundle_is_told_before_anything_is_sent(tmp_path: Path, trtkit: Trtkit) -> None:
    ran = trtkit("check", "localhost:1", "--bundle", tmp_path)
    assert (ran.code, ran.out) == (1, "")
    assert "not a bundle: `manifest.json` is missing" in ran.err


def test_without_the_client_library_its_extra_is_named(trtkit: Trtkit, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "tritonclient.grpc", None)
    ran = trtkit("check", "localhost:1")
    assert (ran.code, ran.out) == (1, "")
    assert "this needs `tritonclient`, which is not installed" in ran.err
    assert f"fix: {install('triton')}" in ran.err
