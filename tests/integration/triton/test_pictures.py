"""Published vision models on a real tritonserver: a cat is classified as a cat, and a page of text is read."""

from __future__ import annotations

import io
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from PIL import Image
from tritonclient.utils import InferenceServerException

from tests.integration.test_examples import ROOT, blocks
from tests.support import models
from tests.support.served_vision import PROTOCOLS, ask, connect, executions, sample
from tests.support.triton import serving
from trtkit.cli.main import main
from trtkit.inputs.images import decode_image
from trtkit.runtime.model import open_model
from trtkit.runtime.page import page_reader, read_page
from trtkit.runtime.tasks.answers import ClassMap, DepthMap, DetectedBoxes, Embedding

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.conftest import Ran
    from tests.support.triton import Served

    Trtkit = Callable[..., Ran]

pytestmark = pytest.mark.slow
DETECTOR = """\
source: {{onnx: {folder}/detector.onnx}}
profiles: [{{batch: [1, 2, 4]}}]
preprocess: {{resize: {{letterbox: [64, 64]}}}}
task:
  kind: detection
  labels: "{folder}/names.txt"
  boxes: {{layout: channels-first, min_score: 0.5, max_boxes: 20, nms: {nms}}}
"""
DETECTORS = {"detector": "host", "selecting": "engine"}
OTHERS = {
    "segments": (models.per_pixel(4), "segmentation", "letterbox"),
    "depths": (models.per_pixel(1), "depth", "exact"),
    "vectors": (models.classifier(size=32), "embedding", "exact"),
}
OTHER = """\
source: {{onnx: {folder}/{name}.onnx}}
profiles: [{{batch: [1, 2, 4]}}]
preprocess: {{resize: {{{resize}: [32, 32]}}}}
task: {{kind: {kind}}}
"""
CAT, PAGE = sample("chelsea.png"), sample("page.png")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the bundles of three shipped configs."""
    folder = tmp_path_factory.mktemp("pictures")
    for name in ("efficientnet-lite0", "ppocr-det", "ppocr-rec"):
        main(["build", name, "-o", str(folder / name), "-q"])
    return folder


@pytest.fixture(scope="module")
def served(folder: Path) -> Iterator[Served]:
    repository, bundles = str(folder / "models"), {path.name: str(path) for path in folder.iterdir()}
    main(["deploy", bundles["efficientnet-lite0"], "--repository", repository, "--name", "animals", "-q"])
    reads = ["--recognizer", bundles["ppocr-rec"], "--name", "ocr"]
    main(["deploy", bundles["ppocr-det"], *reads, "--repository", repository, "-q"])
    _deploy_detector(folder, repository)
    for name, (model, kind, resize) in OTHERS.items():
        models.save(model, folder / f"{name}.onnx")
        (folder / f"{name}.yaml").write_text(OTHER.format(folder=folder, name=name, kind=kind, resize=resize))
        main(["build", str(folder / f"{name}.yaml"), "-o", str(folder / name), "-q"])
        main(["deploy", str(folder / name), "--repository", repository, "-q"])
    with serving(folder / "models") as running:
        yield running


def _deploy_detector(folder: Path, repository: str) -> None:
    models.save(models.detector(), folder / "detector.onnx")
    (folder / "names.txt").write_text("dark\nlight\n")
    for name, nms in DETECTORS.items():
        (folder / f"{name}.yaml").write_text(DETECTOR.format(folder=folder, nms=nms))
        main(["build", str(folder / f"{name}.yaml"), "-o", str(folder / name), "-q"])
        main(["deploy", str(folder / name), "--repository", repository, "-q"])


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("name", DETECTORS)
def test_boxes_are_in_pixels_of_each_picture_of_a_batch(served: Served, folder: Path, name: str, protocol: str) -> None:
    """64 x 64 is the input: a picture of 200 x 100 lies between bars of 16 rows, scaled by 0.32."""
    pictures = [Image.new("RGB", (200, 100), "white"), Image.new("RGB", (50, 80), "black")]
    found = ask(connect(served, protocol), name, image=[[png(picture)] for picture in pictures])
    assert found["num_boxes"].tolist() == [[1], [1]]
    assert found["label"][:, :2].tolist() == [[b"light", b""], [b"dark", b""]]
    assert found["class_id"][:, :2].tolist() == [[1, -1], [0, -1]]
    assert found["box"].shape == (2, 20, 4)
    answers = list(open_model(folder / name).predict(pictures))
    for row, answer in enumerate(answers):
        assert isinstance(answer, DetectedBoxes)
        assert found["box"][row, 0] == pytest.approx(answer.boxes[0].corners, abs=1e-3)
        assert found["score"][row, 0] == pytest.approx(answer.boxes[0].score, abs=1e-5)
    assert found["box"][0, 0] == pytest.approx((100, 50, 200, 100), abs=1e-3)


def noise(*sizes: tuple[int, int]) -> list[Image.Image]:
    random = np.random.default_rng(0)
    return [Image.fromarray(random.integers(0, 256, (height, width, 3), dtype=np.uint8)) for width, height in sizes]


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("name", OTHERS)
def test_maps_and_vectors_are_those_of_run(served: Served, folder: Path, name: str, protocol: str) -> None:
    client = connect(served, protocol)
    for pictures in (noise((50, 40), (50, 40)), noise((33, 70))):
        found = ask(client, name, image=[[png(picture)] for picture in pictures])
        for row, answer in enumerate(open_model(folder / name).predict(pictures)):
            if isinstance(answer, ClassMap):
                assert list(found) == ["class_id"]
                assert found["class_id"][row].shape == answer.ids.shape == pictures[row].size[::-1]
                assert (found["class_id"][row] == answer.ids).mean() > 0.999
                assert len(np.unique(answer.ids)) > 1
            elif isinstance(answer, DepthMap):
                assert found["depth"][row].shape == pictures[row].size[::-1]
                np.testing.assert_allclose(found["depth"][row], answer.values, atol=1e-4)
            else:
                assert isinstance(answer, Embedding)
                np.testing.assert_allclose(found["embedding"][row], answer.vector, atol=1e-5)


def test_maps_of_one_request_have_one_size(served: Served) -> None:
    images = [[png(picture)] for picture in noise((50, 40), (20, 40))]
    with pytest.raises(InferenceServerException) as error:
        ask(connect(served, "http"), "depths", image=images)
    assert error.value.status() == "400"
    assert "maps of one request have the sizes of its images: 40x20, 40x50" in error.value.message()


def png(picture: Image.Image) -> bytes:
    data = io.BytesIO()
    picture.save(data, "PNG")
    return data.getvalue()


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_the_bytes_of_a_cat_are_answered_with_its_name(served: Served, protocol: str) -> None:
    found = ask(connect(served, protocol), "animals", image=[[CAT]])
    assert found["class_id"][0, :2].tolist() == [282, 285]
    assert found["label"][0, 1] == b"Egyptian Mau"
    assert 0 < found["score"][0].sum() < 1


def test_mixed_clients_are_batched_and_each_gets_its_own_animal(served: Served) -> None:
    """32 requests, of one picture and of two, over both protocols: the network runs fewer times than it is asked."""
    clients = {protocol: connect(served, protocol) for protocol in PROTOCOLS}
    cup, before = sample("coffee.png"), executions(clients["http"], "animals_engine")

    def one(index: int) -> Any:
        client = clients["grpc"] if index % 2 else connect(served, "http")
        return ask(client, "animals", image=[[CAT], [cup]] if index % 4 == 0 else [[cup]])["class_id"][:, 0].tolist()

    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(one, range(32)))
    after = executions(clients["http"], "animals_engine", before[0] + 40)
    rows, runs = (later - earlier for later, earlier in zip(after, before, strict=True))
    assert found == [[282, 967] if index % 4 == 0 else [967] for index in range(32)]
    assert rows == 40
    assert runs < 32


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_page_is_read_as_the_example_reads_it(served: Served, folder: Path, protocol: str) -> None:
    found = ask(connect(served, protocol), "ocr", image=[PAGE])
    (shown,) = blocks(ROOT / "examples" / "ocr" / "README.md", "text")
    assert b"\n".join(found["text"]).decode() == shown.rstrip("\n")
    detector, recognizer = (open_model(folder / name, "onnxruntime") for name in ("ppocr-det", "ppocr-rec"))
    reader = page_reader(detector.bundle, recognizer.bundle)
    wanted = read_page(reader, decode_image(PAGE, "page"), detector, recognizer)
    assert found["box"].tolist() == wanted["box"].tolist()
    np.testing.assert_allclose(found["score"], wanted["score"], rtol=1e-4)


def test_a_page_without_text_has_no_lines(served: Served) -> None:
    file = io.BytesIO()
    Image.new("RGB", (300, 200), "white").save(file, "PNG")
    found = ask(connect(served, "http"), "ocr", image=[file.getvalue()])
    assert {name: value.shape for name, value in found.items()} == {"text": (0,), "score": (0,), "box": (0, 4)}


def test_what_is_no_page_is_the_clients_mistake(served: Served) -> None:
    with pytest.raises(InferenceServerException) as error:
        ask(connect(served, "http"), "ocr", image=[PAGE[:500]])
    assert error.value.status() == "400"
    assert "image: not a readable image" in error.value.message()


@pytest.mark.parametrize(
    ("shape", "said"),
    [
        ((1, 3, 64, 1000), "dimension 3 of `x` is 1000; the profile allows 32 to 960"),
        ((1, 3, 16, 64), "dimension 2 of `x` is 16; the profile allows 32 to 960"),
    ],
)
def test_a_shape_outside_of_the_profile_is_named_with_its_dimension(
    served: Served, shape: tuple[int, ...], said: str
) -> None:
    with pytest.raises(InferenceServerException) as error:
        ask(connect(served, "http"), "ocr_detector", x=np.zeros(shape, np.float32))
    assert (error.value.status(), said in error.value.message()) == ("400", True)


@pytest.mark.parametrize(
    ("model", "bundle"), [("animals", "efficientnet-lite0"), ("ocr", "ppocr-det"), ("ocr_recognizer", "ppocr-rec")]
)
def test_what_is_served_is_what_the_bundle_answers(
    served: Served, folder: Path, trtkit: Trtkit, model: str, bundle: str
) -> None:
    ran = trtkit("check", served.http, "--model", model, "--bundle", folder / bundle)
    assert (ran.code, ran.err) == (0, "")
    assert "known request: answered as the bundle does" in ran.out
