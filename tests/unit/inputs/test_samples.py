"""Inputs of `trtkit verify`: what is read, what is drawn, and what is refused with which words."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np
import pytest
from onnx import helper, numpy_helper
from PIL import Image

from tests.support import models
from trtkit.config.schema import ModelConfig
from trtkit.errors import SourceError
from trtkit.inputs.samples import (
    check_profiles,
    random_sample,
    read_samples,
    table_rows,
    with_index_ranges,
    wrapped_sample,
)
from trtkit.network.input_spec import ProfileShapes
from trtkit.network.onnx.io import OnnxTensorSpec, graph_inputs

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

IMAGES = [OnnxTensorSpec("images", "fp32", ("batch", 3, "height", "width"))]
TWO = [OnnxTensorSpec("ids", "int64", ("batch", "tokens")), OnnxTensorSpec("mask", "fp32", ("batch", "tokens"))]


def config(**keys: Any) -> ModelConfig:
    return ModelConfig.model_validate({"source": {"onnx": "model.onnx"}, **keys})


WITH_IMAGES = config(preprocess={"scale": 1.0})


def picture(path: Path, value: int = 7, size: tuple[int, int] = (5, 4)) -> Path:
    Image.new("RGB", size, (value, value + 1, value + 2)).save(path)
    return path


def refused(call: Callable[[], object]) -> str:
    with pytest.raises(SourceError) as error:
        call()
    return str(error.value)


def test_an_image_becomes_the_models_input(tmp_path: Path) -> None:
    (sample,) = read_samples([str(picture(tmp_path / "a.png"))], WITH_IMAGES, IMAGES)
    assert sample.name == "a.png"
    want = np.broadcast_to(np.float32([7, 8, 9])[None, :, None, None], (1, 3, 4, 5))
    np.testing.assert_array_equal(sample.inputs["images"], want)
    assert sample.inputs["images"].dtype == np.float32


@pytest.mark.parametrize(("dtype", "numpy_type"), [("fp16", np.float16), ("bf16", ml_dtypes.bfloat16)])
def test_an_image_has_the_type_that_the_network_takes(tmp_path: Path, dtype: str, numpy_type: Any) -> None:
    inputs = [OnnxTensorSpec("images", dtype, IMAGES[0].shape)]
    (sample,) = read_samples([str(picture(tmp_path / "a.png"))], WITH_IMAGES, inputs)
    assert sample.inputs["images"].dtype == numpy_type
    assert sample.inputs["images"][0, :, 0, 0].tolist() == [7, 8, 9]


def test_a_folder_is_read_in_the_order_of_names_without_other_files(tmp_path: Path) -> None:
    for name, value in (("b.png", 2), ("a.PNG", 1), ("c.bmp", 3)):
        picture(tmp_path / name, value)
    (tmp_path / "notes.txt").write_text("not an input")
    np.savez(tmp_path / "d.NPZ", images=np.full((1, 3, 2, 2), 4, np.float32))
    (tmp_path / "d.NPZ.npz").rename(tmp_path / "d.NPZ")
    samples = read_samples([str(tmp_path)], WITH_IMAGES, IMAGES)
    assert [(sample.name, sample.inputs["images"][0, 0, 0, 0]) for sample in samples] == [
        ("a.PNG", 1),
        ("b.png", 2),
        ("c.bmp", 3),
        ("d.NPZ", 4),
    ]


def test_npz_arrays_are_taken_as_they_are(tmp_path: Path) -> None:
    ids, mask = np.arange(6).reshape(2, 3), np.ones((2, 3), np.float32)
    np.savez(tmp_path / "in.npz", ids=ids, mask=mask)
    (sample,) = read_samples([str(tmp_path / "in.npz")], config(), TWO)
    np.testing.assert_array_equal(sample.inputs["ids"], ids)
    np.testing.assert_array_equal(sample.inputs["mask"], mask)


def test_polygraphys_saved_inputs_are_read(tmp_path: Path) -> None:
    from polygraphy.json import save_json

    feeds = [{"ids": np.full((1, 2), n), "mask": np.full((1, 2), n / 2, np.float32)} for n in (1, 2)]
    save_json(feeds, str(tmp_path / "feeds.json"))
    samples = read_samples([str(tmp_path / "feeds.json")], config(), TWO)
    assert [sample.name for sample in samples] == ["feeds.json#0", "feeds.json#1"]
    assert [sample.inputs["ids"].tolist() for sample in samples] == [[[1, 1]], [[2, 2]]]
    assert [sample.inputs["mask"].tolist() for sample in samples] == [[[0.5, 0.5]], [[1.0, 1.0]]]


def test_random_data_is_seeded_normal_and_integers_are_0_or_1() -> None:
    shapes = {"ids": (20, 50), "mask": (20, 50)}
    sample, again = (random_sample("random", shapes, config(), TWO) for _ in range(2))
    assert set(np.unique(sample.inputs["ids"])) == {0, 1}
    assert sample.inputs["ids"].dtype == np.int64
    mask = sample.inputs["mask"]
    assert (mask.dtype, mask.shape) == (np.float32, (20, 50))
    assert abs(mask.mean()) < 0.1
    assert abs(mask.std() - 1) < 0.1
    np.testing.assert_array_equal(mask, again.inputs["mask"])


def test_random_data_keeps_to_the_configs_ranges() -> None:
    ranged = config(verify={"ranges": {"ids": [5, 9], "mask": [-3, -2]}})
    sample = random_sample("random", {"ids": (20, 50), "mask": (20, 50)}, ranged, TWO)
    assert set(np.unique(sample.inputs["ids"])) == {5, 6, 7, 8, 9}
    assert -3 <= sample.inputs["mask"].min() < -2.9
    assert -2.1 < sample.inputs["mask"].max() <= -2


def test_real_data_is_cut_or_repeated_to_other_shapes() -> None:
    sample = wrapped_sample("s", {"x": (2, 3)}, wrapped_sample("s", {"x": (1, 2)}, _sample(x=np.array([[1, 2, 9]]))))
    assert sample.inputs["x"].tolist() == [[1, 2, 1], [1, 2, 1]]


def _sample(**inputs: Any) -> Any:
    from trtkit.inputs.samples import Sample

    return Sample("given.npz", inputs)


BAD_ARRAYS = {
    "wrong shape": (
        {"images": np.zeros((1, 4, 8, 8), np.float32)},
        "in.npz: `images` has shape [1, 4, 8, 8]; expected [batch, 3, height, width]\nfix: give an array of that shape",
    ),
    "wrong rank": (
        {"images": np.zeros((3, 8, 8), np.float32)},
        "in.npz: `images` has shape [3, 8, 8]; expected [batch, 3, height, width]\nfix: give an array of that shape",
    ),
    "wrong type": (
        {"images": np.zeros((1, 3, 8, 8))},
        "in.npz: `images` has type float64, float32 is needed\nfix: convert it",
    ),
    "wrong name": (
        {"pixels": np.zeros((1, 3, 8, 8), np.float32)},
        "in.npz: unknown input `pixels`, missing input `images`\nfix: the network's inputs are images",
    ),
    "NaN": (
        {"images": np.full((1, 3, 8, 8), np.nan, np.float32)},
        "in.npz: `images` holds NaN or infinite values\nfix: give finite inputs",
    ),
    "infinite": (
        {"images": np.full((1, 3, 8, 8), np.inf, np.float32)},
        "in.npz: `images` holds NaN or infinite values\nfix: give finite inputs",
    ),
}


@pytest.mark.parametrize("kind", BAD_ARRAYS)
def test_arrays_that_do_not_fit_are_refused(tmp_path: Path, kind: str) -> None:
    arrays, message = BAD_ARRAYS[kind]
    np.savez(tmp_path / "in.npz", **arrays)
    assert refused(lambda: read_samples([str(tmp_path / "in.npz")], config(), IMAGES)) == message


def test_shapes_outside_the_profile_are_refused_with_its_bounds() -> None:
    profile = {"x": ProfileShapes(min=(1, 3), opt=(2, 3), max=(4, 3))}
    assert refused(lambda: check_profiles(_sample(x=np.zeros((5, 3))), [profile])) == (
        "given.npz: dimension 0 of `x` is 5; the profile allows 1 to 4\n"
        "fix: give other inputs, or widen the profile and build again"
    )


def test_shapes_that_no_single_profile_covers_are_refused() -> None:
    small = {name: ProfileShapes(min=(1,), opt=(1,), max=(4,)) for name in "xy"}
    large = {name: ProfileShapes(min=(5,), opt=(5,), max=(8,)) for name in "xy"}
    check_profiles(_sample(x=np.zeros(6), y=np.zeros(7)), [small, large])
    assert refused(lambda: check_profiles(_sample(x=np.zeros(2), y=np.zeros(7)), [small, large])) == (
        "given.npz: dimension 0 of `y` is 7; the profile allows 1 to 4\n"
        "fix: give other inputs, or widen the profile and build again"
    )


def test_an_empty_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("not an input")
    assert refused(lambda: read_samples([str(tmp_path)], WITH_IMAGES, IMAGES)) == (
        f"{tmp_path}: the folder holds no inputs\n"
        "fix: put files in it that end in .bmp, .jpeg, .jpg, .json, .npz, .png, .tif, .tiff, .webp"
    )


def test_a_missing_or_unknown_file_is_refused(tmp_path: Path) -> None:
    missing, text = tmp_path / "a.png", tmp_path / "b.txt"
    picture(tmp_path / "c.png")
    text.write_text("x")
    assert refused(lambda: read_samples([str(missing)], WITH_IMAGES, IMAGES)) == (
        f"{missing}: no such file\nfix: files there: c.png"
    )
    assert refused(lambda: read_samples([str(text)], WITH_IMAGES, IMAGES)) == (
        f"{text}: unknown kind of input `.txt`\nfix: use .bmp, .jpeg, .jpg, .json, .npz, .png, .tif, .tiff, .webp"
    )


def test_images_need_preprocessing_and_a_model_of_one_input(tmp_path: Path) -> None:
    path = picture(tmp_path / "a.png")
    assert refused(lambda: read_samples([str(path)], config(), IMAGES)) == (
        f"{path}: images need `preprocess:` in the config\nfix: add it, or give .npz arrays"
    )
    assert refused(lambda: read_samples([str(path)], WITH_IMAGES, TWO)) == (
        f"{path}: an image is one input; the model has 2\nfix: give .npz arrays"
    )


def _npz() -> bytes:
    buffer = io.BytesIO()
    np.savez(buffer, images=np.zeros((1, 3, 8, 8), np.float32))
    return buffer.getvalue()


def _npz_of_objects() -> bytes:
    buffer = io.BytesIO()
    np.savez(buffer, images=np.array([object()]))
    return buffer.getvalue()


def _npy() -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, np.zeros(3))
    return buffer.getvalue()


DAMAGED = {
    "text": (b"not a ZIP archive", "File is not a zip file"),
    "empty": (b"", "File is not a zip file"),
    "cut off": (_npz()[:200], "File is not a zip file"),
    "changed": (_npz()[:300] + b"!" + _npz()[301:], "Bad CRC-32 for file 'images.npy'"),
    "a single array": (_npy(), "File is not a zip file"),
    "pickled": (_npz_of_objects(), "Object arrays cannot be loaded when allow_pickle=False"),
}


@pytest.mark.parametrize("kind", DAMAGED)
def test_damaged_arrays_are_refused(tmp_path: Path, kind: str) -> None:
    data, reason = DAMAGED[kind]
    path = tmp_path / "in.npz"
    path.write_bytes(data)
    assert refused(lambda: read_samples([str(path)], config(), IMAGES)) == (
        f"{path}: not a readable .npz file: {reason}\nfix: save it with numpy.savez"
    )


def test_json_that_is_no_polygraphy_data_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "in.json"
    path.write_text("{broken")
    message = refused(lambda: read_samples([str(path)], config(), IMAGES))
    assert message.startswith(f"{path}: not a Polygraphy data file: ")
    assert message.endswith("\nfix: make it with `--save-inputs`")
    path.write_text("[1, 2]")
    assert refused(lambda: read_samples([str(path)], config(), IMAGES)) == (
        f"{path}: not a Polygraphy data file: it holds no arrays by input name\nfix: make it with `--save-inputs`"
    )


def test_a_model_that_takes_channels_last_gets_them(tmp_path: Path) -> None:
    path, last = picture(tmp_path / "a.png"), [OnnxTensorSpec("x", "fp32", ("batch", "height", "width", 3))]
    assert refused(lambda: read_samples([str(path)], WITH_IMAGES, last)) == (
        f"{path}: `x` takes channels last\nfix: set `preprocess.layout: nhwc`"
    )
    nhwc = config(preprocess={"scale": 1.0, "layout": "nhwc"})
    assert read_samples([str(path)], nhwc, last)[0].inputs["x"].shape == (1, 4, 5, 3)


def embeddings() -> object:
    """ids, kinds and mask; ids pick rows of 500 behind a cast, kinds of two tables."""
    nodes = [
        helper.make_node("Cast", ["ids"], ["wide"], to=7),
        helper.make_node("Gather", ["words", "wide"], ["w"]),
        helper.make_node("Gather", ["large", "kinds"], ["a"]),
        helper.make_node("Gather", ["small", "kinds"], ["b"]),
        helper.make_node("Cast", ["mask"], ["m"], to=1),
        helper.make_node("Sum", ["w", "a", "b"], ["y"]),
    ]
    sizes = {"words": 500, "large": 9, "small": 3}
    tables = [numpy_helper.from_array(np.zeros((rows, 4), np.float32), name) for name, rows in sizes.items()]
    inputs = [models.tensor(name, 40, dtype="INT64") for name in ("ids", "kinds", "mask")]
    return models.model(nodes, inputs, [models.tensor("y", 40, 4), models.tensor("m", 40)], tables)


def test_ids_are_drawn_from_all_rows_of_the_smallest_table_they_pick_from() -> None:
    model = embeddings()
    assert table_rows(model) == {"ids": 500, "kinds": 3}
    config = ModelConfig.model_validate({"source": {"onnx": "m.onnx"}, "verify": {"ranges": {"kinds": [0, 1]}}})
    config = with_index_ranges(config, model)
    assert config.verify.ranges == {"ids": (0.0, 499.0), "kinds": (0.0, 1.0)}
    shapes = dict.fromkeys(("ids", "kinds", "mask"), (40,))
    drawn = random_sample("random", shapes, config, graph_inputs(model)).inputs
    assert drawn["ids"].max() > 100
    assert drawn["ids"].max() < 500
    assert set(drawn["mask"]) == {0, 1}
