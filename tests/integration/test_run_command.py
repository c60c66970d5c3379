"""`trtkit run` for users: answers on stdout, drawn pictures, refusals."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import av
import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper
from PIL import Image

from tests.support import models
from tests.support.deployments import deployed
from trtkit import open_model
from trtkit.config.task import Preprocess, Resize
from trtkit.deployment.answers import answer_tensors, reader_from
from trtkit.inputs.images import image_input, read_image
from trtkit.runtime.tasks.answers import Classes

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.conftest import Ran

    Trtkit = Callable[..., Ran]

CONFIG = """\
source: {onnx: tiny.onnx}
profiles: [{batch: [1, 2, 4]}]
preprocess: {resize: {exact: [16, 16]}}
task: {kind: classification, labels: names.txt}
"""


def picture(path: Path, seed: int) -> Path:
    colours = np.random.default_rng(seed).integers(0, 256, (3, 4, 3), dtype=np.uint8)
    pixels = np.kron(colours, np.ones((10, 10, 1), np.uint8))
    Image.fromarray(pixels).save(path)
    return path


def build(workspace: Path, trtkit: Trtkit, config: str = CONFIG) -> Path:
    models.save(models.classifier(), workspace / "tiny.onnx")
    (workspace / "names.txt").write_text("ant\nbee\ncat\ndog\nelk\n")
    (workspace / "tiny.yaml").write_text(config)
    assert trtkit("build", "tiny.yaml", "-o", "bundle", "-q").code == 0
    return workspace / "bundle"


def test_pictures_are_answered_in_order_whatever_the_batch(workspace: Path, trtkit: Trtkit) -> None:
    bundle = build(workspace, trtkit)
    (workspace / "photos").mkdir()
    for index in range(5):
        picture(workspace / "photos" / f"{index}.png", index)
    runs = [trtkit("run", bundle, "photos", "--json", "--batch", batch) for batch in (1, 2, 4)]
    answers = [[json.loads(line) for line in ran.out.splitlines()] for ran in runs]
    assert [each["input"] for each in answers[0]] == [f"{index}.png" for index in range(5)]
    scores = [[each["classes"][0]["score"] for each in answer] for answer in answers]
    assert len({round(score, 3) for score in scores[0]}) > 3
    assert scores[1] == pytest.approx(scores[0], abs=1e-5)
    assert scores[2] == pytest.approx(scores[0], abs=1e-5)
    python = list(open_model(bundle).predict(sorted((workspace / "photos").iterdir())))
    assert [answer.scores[0] for answer in python if isinstance(answer, Classes)] == pytest.approx(scores[0], abs=1e-5)


def test_a_bundle_holds_its_labels(workspace: Path, trtkit: Trtkit, monkeypatch: pytest.MonkeyPatch) -> None:
    """The config's labels are relative to its file; neither file nor folder is needed after the build."""
    photo, names = picture(workspace / "photo.png", 0), workspace / "deep" / "names.txt"
    names.parent.mkdir()
    models.save(models.classifier(), workspace / "deep" / "tiny.onnx")
    names.write_text("ant\nbee\ncat\ndog\nelk\n")
    (workspace / "deep" / "tiny.yaml").write_text(CONFIG)
    answers = []
    for count in range(2):
        ran = trtkit("build", "deep/tiny.yaml", "-o", "bundle", "--json")
        assert ran.code == 0, ran.err
        names.rename(workspace / f"{count}.txt")
        (workspace / "elsewhere").mkdir(exist_ok=True)
        with monkeypatch.context() as patch:
            patch.chdir(workspace / "elsewhere")
            answers.append(json.loads(trtkit("run", "../bundle", photo, "--json").out)["classes"])
        names.write_text("ape\nboa\ncow\ndoe\nemu\n")
    first, second = ([each["label"] for each in classes] for classes in answers)
    assert sorted(first) == ["ant", "bee", "cat", "dog", "elk"]
    # Names changed since are taken over without building the engine again.
    assert [name[0] for name in second] == [name[0] for name in first]
    assert sorted(second) == ["ape", "boa", "cow", "doe", "emu"]
    assert ran.json()["origin"] == "unchanged"


def test_a_bundle_without_its_labels_is_built_again(workspace: Path, trtkit: Trtkit) -> None:
    bundle, photo = build(workspace, trtkit), picture(workspace / "photo.png", 0)
    manifest = json.loads((bundle / "manifest.json").read_text())
    del manifest["labels"]
    (bundle / "manifest.json").write_text(json.dumps(manifest))
    what = "the bundle was built by a trtkit that did not keep the names of `task.labels` in it"
    assert trtkit("run", bundle, photo).err.endswith(f"error: {bundle}: {what}\nfix: build it again\n")
    assert trtkit("build", "tiny.yaml", "-o", "bundle", "-q").code == 0
    assert trtkit("run", bundle, photo).code == 0


def test_labels_are_read_before_anything_is_built(workspace: Path, trtkit: Trtkit) -> None:
    models.save(models.classifier(), workspace / "tiny.onnx")
    (workspace / "tiny.yaml").write_text(CONFIG)
    ran = trtkit("build", "tiny.yaml", "-o", "bundle")
    assert ran.code == 1
    assert f"error: {workspace / 'names.txt'}: no such file" in ran.err
    assert not (workspace / "bundle").exists()


def ends_in_softmax() -> onnx.ModelProto:
    """The classifier with probabilities [batch, 5, 1, 1], as SqueezeNet gives them."""
    proto = models.classifier()
    shape = helper.make_tensor("four", onnx.TensorProto.INT64, [4], [-1, 5, 1, 1])
    nodes = [
        *proto.graph.node,
        helper.make_node("Reshape", ["logits", "four"], ["raised"]),
        helper.make_node("Softmax", ["raised"], ["scores"], axis=1),
    ]
    weights = [*proto.graph.initializer, shape]
    return models.model(nodes, proto.graph.input, [models.tensor("scores", "batch", 5, 1, 1)], weights)


def test_a_softmax_in_the_network_is_not_applied_again(workspace: Path, trtkit: Trtkit) -> None:
    """Neither by `run` nor by the served pipeline; ONNX Runtime is the reference."""
    file = models.save(ends_in_softmax(), workspace / "soft.onnx")
    bundle = build(workspace, trtkit, CONFIG.replace("tiny.onnx", "soft.onnx"))
    photo = picture(workspace / "photo.png", 0)
    ran = trtkit("run", bundle, photo, "--json")
    (scores,) = onnxruntime.InferenceSession(file).run(
        None, {"images": image_input(read_image(photo), Preprocess(resize=Resize(exact=(16, 16))))}
    )
    probabilities = sorted(scores.ravel(), reverse=True)
    assert [each["score"] for each in json.loads(ran.out)["classes"]] == pytest.approx(probabilities, abs=1e-4)
    deployed(trtkit, bundle)
    (file,) = (workspace / "models").glob("*_postprocess/1/settings.json")
    tensors = answer_tensors(reader_from(json.loads(file.read_text())), {"scores": scores})
    np.testing.assert_allclose(tensors["score"], [probabilities], rtol=1e-6)
    pbtxt = "".join((file.parents[1] / "config.pbtxt").read_text().split())
    assert pbtxt.count("dims:5dims:1dims:1") == 1
    assert pbtxt.count("dims:5}") == 3  # class_id, score, label


def test_answers_are_drawn_and_the_rate_is_told(workspace: Path, trtkit: Trtkit) -> None:
    bundle, photo = build(workspace, trtkit), picture(workspace / "photo.jpg", 0)
    ran = trtkit("run", bundle, photo, "--output", "drawn", "--top-k", "2")
    assert ran.out.startswith("photo.jpg: ")
    assert ran.out.count(",") == 1
    assert ran.err.startswith("1 input in ")
    assert "reference executor on the tensorrt_rtx" in ran.err
    with Image.open(workspace / "drawn" / "photo.jpg") as drawn, Image.open(photo) as before:
        assert drawn.size == before.size
        assert np.asarray(drawn).tobytes() != np.asarray(before).tobytes()


def test_frames_of_a_video_are_pictures(workspace: Path, trtkit: Trtkit) -> None:
    bundle = build(workspace, trtkit)
    with av.open(str(workspace / "two.mp4"), "w") as video:
        stream = video.add_stream("mpeg4", rate=5)
        stream.width, stream.height, stream.pix_fmt = 64, 48, "yuv420p"
        for index in range(6):
            frame = av.VideoFrame.from_ndarray(np.full((48, 64, 3), 40 * index, np.uint8), format="rgb24")
            video.mux(stream.encode(frame))
        video.mux(stream.encode())
    ran = trtkit("run", bundle, "two.mp4", "--every", "2", "--json")
    assert [json.loads(line)["input"] for line in ran.out.splitlines()] == ["two.mp4#0", "two.mp4#2", "two.mp4#4"]


def test_arrays_are_answered_row_by_row(workspace: Path, trtkit: Trtkit) -> None:
    bundle = build(workspace, trtkit)
    np.savez(workspace / "x.npz", images=np.random.default_rng(0).normal(size=(2, 3, 16, 16)).astype(np.float32))
    ran = trtkit("run", bundle, "x.npz", "--json")
    assert [json.loads(line)["input"] for line in ran.out.splitlines()] == ["x.npz[0]", "x.npz[1]"]


def test_without_a_task_the_outputs_are_saved(workspace: Path, trtkit: Trtkit) -> None:
    bundle = build(workspace, trtkit, CONFIG.replace("task: {kind: classification, labels: names.txt}\n", ""))
    ran = trtkit("run", bundle, picture(workspace / "photo.png", 0), "-o", "results")
    assert ran.out == "photo.png: logits float32 [1, 5]\n"
    assert np.load(workspace / "results" / "photo.png.npz")["logits"].shape == (1, 5)


@pytest.mark.parametrize(
    ("config", "arguments", "error"),
    [
        (CONFIG, ["tiny.yaml"], "tiny.yaml: unknown kind of file `.yaml`\nfix: give pictures"),
        (CONFIG, ["photo.png", "copy/photo.png"], "copy/photo.png: two inputs are called `photo.png`"),
        (CONFIG, ["empty"], "empty: the folder holds no pictures and no videos"),
        (CONFIG, ["photo.png", "--batch", "9"], "batch: a batch of 9 pictures; the engine takes 1 to 4"),
        (CONFIG.replace("preprocess", "# "), ["photo.png"], "tiny: the config does not define how a picture becomes"),
        (
            CONFIG.replace("classification, labels: names.txt", "segmentation"),
            ["photo.png"],
            "task: outputs `logits` [-1, 5] are not those of a segmentation task",
        ),
        (CONFIG.replace("names.txt", "tiny.yaml"), ["photo.png"], "tiny.yaml: `task.labels` names 4 classes; the"),
    ],
)
def test_what_cannot_be_answered_is_refused(
    config: str, arguments: list[str], error: str, workspace: Path, trtkit: Trtkit
) -> None:
    bundle = build(workspace, trtkit, config)
    (workspace / "copy").mkdir()
    (workspace / "empty").mkdir()
    picture(workspace / "photo.png", 0)
    picture(workspace / "copy" / "photo.png", 1)
    ran = trtkit("run", bundle, *arguments)
    assert (ran.code, ran.out) == (1, "")
    assert error in ran.err.partition("error: ")[2]


@pytest.mark.parametrize("scale", ["", "scale: 1.0, "])
def test_pixels_are_not_cut_off_to_zeros(scale: str, workspace: Path, trtkit: Trtkit) -> None:
    """An input of bytes: the shares of red, green and blue, if the config does not scale them to fractions."""
    cast, mean = (helper.make_node(*words) for words in (("Cast", ["images"], ["f"]), ("ReduceMean", ["f"], ["y"])))
    cast.attribute.append(helper.make_attribute("to", 1))
    mean.attribute.extend([helper.make_attribute("axes", [2, 3]), helper.make_attribute("keepdims", 0)])
    inputs = [models.tensor("images", "batch", 3, 8, 8, dtype="UINT8")]
    models.save(models.model([cast, mean], inputs, [models.tensor("y", "batch", 3)]), workspace / "tiny.onnx")
    keys = f"preprocess: {{{scale}resize: {{exact: [8, 8]}}}}\ntask: {{kind: classification}}\n"
    (workspace / "tiny.yaml").write_text(f"source: {{onnx: tiny.onnx}}\n{keys}")
    assert trtkit("build", "tiny.yaml", "-o", "bundle", "-q").code == 0
    Image.new("RGB", (20, 20), (3, 9, 6)).save(workspace / "green.png")
    ran = trtkit("run", "bundle", "green.png")
    if scale:
        assert ran.out.startswith("green.png: class 1 0.95, class 2 0.05")
    else:
        assert "preprocess: `preprocess` scales pixels to fractions, and the input is uint8" in ran.err
