"""Vision models on a real tritonserver: pipelines, tensors, hybrids, and plans that only lack TensorRT's backend."""

from __future__ import annotations

import base64
import json
import re
import shutil
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import tritonclient.http
from tritonclient.utils import InferenceServerException, shared_memory

from tests.support.deployments import LABELS, classifier
from tests.support.served_vision import PROTOCOLS, ask, connect, executions, sample
from tests.support.triton import serving
from trtkit.inputs.images import decode_image, image_input
from trtkit.runtime.model import open_model

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.conftest import Ran
    from tests.support.triton import Served

    Trtkit = Callable[..., Ran]


MISSING = "unable to find backend library for backend 'tensorrt'"


@pytest.fixture
def served(served_vision: Served) -> Served:
    """The server of vision models, not of the chat model."""
    return served_vision


@pytest.fixture
def client(served: Served) -> Iterator[Any]:
    client = connect(served, "http")
    yield client
    client.close()


def pixels(batch: int, size: tuple[int, int] = (16, 16)) -> Any:
    return np.random.default_rng(batch).standard_normal((batch, 3, *size)).astype(np.float32)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_an_image_is_answered_by_its_classes(served: Served, vision_folder: Path, protocol: str) -> None:
    pictures = [sample(name) for name in ("chelsea.png", "coffee.png", "page.png")]
    found = ask(connect(served, protocol), "tiny", image=[[each] for each in pictures])
    model = open_model(vision_folder / "tiny", "onnxruntime")
    preprocess = model.bundle.manifest.config.preprocess
    assert preprocess is not None
    logits = np.concatenate([model(image_input(decode_image(each, "x"), preprocess)) for each in pictures])
    shares = np.exp(logits) / np.exp(logits).sum(axis=-1, keepdims=True)
    assert found["class_id"].tolist() == np.argsort(-logits, axis=-1).tolist()
    np.testing.assert_allclose(found["score"], -np.sort(-shares, axis=-1), rtol=1e-4)
    assert found["label"].tolist() == [[LABELS[index].encode() for index in row] for row in found["class_id"]]


def test_a_picture_in_json_is_base64_as_the_docs_send_it(served: Served, client: Any, tmp_path: Path) -> None:
    page = Path(__file__).parents[3] / "docs" / "serving.md"
    (command,) = re.findall(r"^```bash\n(\(printf .*?)```", page.read_text(), re.DOTALL | re.MULTILINE)
    picture = sample("chelsea.png")
    (tmp_path / "cat.jpg").write_bytes(picture)
    command = command.replace("127.0.0.1:8000", served.http).replace("resnet50", "tiny")
    ran = subprocess.run(["bash", "-c", command], cwd=tmp_path, capture_output=True, text=True, check=True)
    outputs = {each["name"]: each["data"] for each in json.loads(ran.stdout)["outputs"]}
    url = b"data:image/png;base64," + base64.b64encode(picture)
    for data in (picture, url):
        expected = ask(client, "tiny", image=[[data]])
        assert outputs["class_id"] == expected["class_id"].ravel().tolist()
        np.testing.assert_allclose(outputs["score"], expected["score"].ravel(), rtol=1e-6)


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (b"no image", "image: not a readable image: its format is none of BMP, GIF, JPEG, PNG, TIFF, WEBP"),
        (sample("chelsea.png")[:1000], "image: not a readable image: "),
        (b"", "image: not a readable image: "),
    ],
    ids=["bytes", "cut", "empty"],
)
def test_what_is_no_image_is_the_clients_mistake(client: Any, value: bytes, said: str) -> None:
    with pytest.raises(InferenceServerException) as error:
        ask(client, "tiny", image=[[value]])
    assert (error.value.status(), said in error.value.message()) == ("400", True)


def test_the_one_wrong_image_of_several_is_named(client: Any) -> None:
    with pytest.raises(InferenceServerException) as error:
        ask(client, "tiny", image=[[sample("chelsea.png")], [b"no image"]])
    assert "image 1: not a readable image" in error.value.message()


@pytest.mark.parametrize(
    ("model", "inputs", "said"),
    [
        ("plain", {"images": pixels(1, (16, 17))}, "unexpected shape for input 'images'"),
        ("plain", {"images": pixels(5)}, "must be <= 4"),
        ("plain", {"images": pixels(1).astype(np.float64)}, "inference input 'images' data-type is 'FP64'"),
        ("plain", {"pictures": pixels(1)}, "unexpected inference input 'pictures'"),
        ("tiny", {"image": pixels(1)}, "inference input 'image' data-type is 'FP32'"),
        ("tiny", {"image": [[b"a", b"b"]]}, "unexpected shape for input 'image'"),
    ],
)
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_wrong_tensors_are_refused_by_name(
    served: Served, protocol: str, model: str, inputs: dict[str, Any], said: str
) -> None:
    with pytest.raises(InferenceServerException) as error:
        ask(connect(served, protocol), model, **inputs)
    assert error.value.status() in {"400", "StatusCode.INVALID_ARGUMENT"}
    assert said in error.value.message()


def test_clients_at_once_are_batched_and_each_gets_its_own_answer(served: Served, vision_folder: Path) -> None:
    """48 requests of 1 or 2 rows over both protocols run in fewer executions than they are."""
    model = open_model(vision_folder / "tiny", "onnxruntime")
    clients = {protocol: connect(served, protocol) for protocol in PROTOCOLS}
    before = executions(clients["http"], "plain")

    def one(index: int) -> float:
        x = np.random.default_rng(index).standard_normal((1 + index % 2, 3, 16, 16)).astype(np.float32)
        client = clients["grpc"] if index % 3 else connect(served, "http")
        found = ask(client, "plain", images=x)["logits"]
        return float(np.abs(found - model(x)).max())

    with ThreadPoolExecutor(16) as pool:
        errors = list(pool.map(one, range(48)))
    after = executions(clients["http"], "plain", before[0] + 72)
    rows, runs = (later - earlier for later, earlier in zip(after, before, strict=True))
    assert max(errors) < 1e-5
    assert rows == 72
    assert runs < 48  # one run each without batching


@pytest.mark.parametrize("name", ["fused", "chained"])
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_hybrid_computes_what_it_does_here(served: Served, vision_folder: Path, name: str, protocol: str) -> None:
    x = pixels(3, (30, 18))
    found = ask(connect(served, protocol), name, pixel_values=x)
    wanted = open_model(vision_folder / name, "reference").run({"pixel_values": x})
    np.testing.assert_allclose(found["logits"], wanted["logits"], rtol=1e-5, atol=1e-6)


def test_inputs_and_outputs_through_shared_memory(client: Any, vision_folder: Path) -> None:
    x, wanted_bytes = pixels(2), 2 * 5 * 4
    region = shared_memory.create_shared_memory_region("trtkit-test", "/trtkit-test", x.nbytes + wanted_bytes)
    try:
        shared_memory.set_shared_memory_region(region, [x])
        client.register_system_shared_memory("trtkit-test", "/trtkit-test", x.nbytes + wanted_bytes)
        tensor = tritonclient.http.InferInput("images", list(x.shape), "FP32")
        tensor.set_shared_memory("trtkit-test", x.nbytes)
        output = tritonclient.http.InferRequestedOutput("logits")
        output.set_shared_memory("trtkit-test", wanted_bytes, x.nbytes)
        client.infer("plain", [tensor], outputs=[output])
        found = shared_memory.get_contents_as_numpy(region, np.float32, [2, 5], x.nbytes)
        np.testing.assert_allclose(found, open_model(vision_folder / "tiny", "onnxruntime")(x), rtol=1e-4, atol=1e-5)
    finally:
        client.unregister_system_shared_memory("trtkit-test")
        shared_memory.destroy_shared_memory_region(region)


@pytest.mark.parametrize("name", ["tiny", "plain"])
def test_a_deployed_model_is_right(served: Served, vision_folder: Path, trtkit: Trtkit, name: str) -> None:
    ran = trtkit("check", served.http, "--model", name, "--bundle", vision_folder / "tiny")
    assert (ran.code, ran.err) == (0, "")
    assert "known request: answered as the bundle does" in ran.out


def test_a_full_tensorrt_plan_lacks_only_the_backends_library(served: Served) -> None:
    """The server has read each config: its only complaint is that this server has no TensorRT."""
    natives = {name: state for name, state in served.states.items() if name.startswith("native")}
    failed = {name: state.reason for name, state in natives.items() if MISSING in state.reason}
    assert sorted(failed) == ["native_chained_encoder", "native_chained_patch", "native_tiny_engine"]
    assert all(state.state == "UNAVAILABLE" for state in natives.values() if state.name in failed)
    assert {name for name, state in natives.items() if state.is_ready} == {
        "native_tiny_preprocess",
        "native_tiny_postprocess",
    }
    waiting = {name: state.reason for name, state in natives.items() if name in {"native_tiny", "native_chained"}}
    assert all("which has no loaded version" in reason for reason in waiting.values()), waiting


def test_the_newest_version_is_served_while_the_server_runs(
    vision_folder: Path, tmp_path: Path, trtkit: Trtkit
) -> None:
    """A server that polls finds version 2; what a killed deployment left behind is not taken for a model."""
    repository = tmp_path / "models"
    deploy = ("deploy", "--as", "tensors", "--repository", repository, "--name", "plain", "--set", "keep_versions=2")
    assert trtkit(*deploy, vision_folder / "tiny").code == 0
    shutil.copytree(repository / "plain" / "1", repository / "plain" / "7")  # renamed, its config not yet replaced
    with serving(repository, "--model-control-mode=poll", "--repository-poll-secs=1") as running:
        assert {(state.name, state.version, state.is_ready) for state in running.states.values()} == {
            ("plain", "1", True)
        }
        other = classifier(tmp_path / "other", "tiny", seed=5)
        assert trtkit(*deploy, other).code == 0
        x, client = pixels(2), connect(running, "http")
        deadline = time.monotonic() + 120
        while not client.is_model_ready("plain", "8"):
            assert time.monotonic() < deadline
            time.sleep(0.2)
        for version, bundle in (("1", vision_folder / "tiny"), ("8", other), ("", other)):
            found = ask(client, "plain", version, images=x)["logits"]
            np.testing.assert_allclose(found, open_model(bundle, "onnxruntime")(x), rtol=1e-4, atol=1e-5)


def test_a_model_whose_files_have_changed_does_not_load(vision_folder: Path, tmp_path: Path, trtkit: Trtkit) -> None:
    repository = tmp_path / "models"
    trtkit("deploy", vision_folder / "tiny", "--as", "tensors", "--repository", repository, "--name", "plain")
    network = repository / "plain/1/bundle/network/model.onnx"
    changed = network.read_bytes() + b"\0"
    network.unlink()
    network.write_bytes(changed)
    refused = trtkit("serve", repository)
    assert refused.code == 1
    assert f"{network}: the file has changed since it was deployed: SHA-256 mismatch" in refused.err
    with serving(repository) as running:  # a server that nobody asked to check
        reason = " ".join(running.states["plain"].reason.split())
    assert "model.onnx: the file has changed since the build: SHA-256 mismatch" in reason
