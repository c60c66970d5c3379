"""Preprocessing against transformers' image processors and against arithmetic by hand."""

from __future__ import annotations

import random
import warnings
from importlib.util import find_spec
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from transformers.models.mobilenet_v2 import MobileNetV2ImageProcessorPil
from transformers.models.vit import ViTImageProcessorPil

from trtkit.config.task import Preprocess, Resize
from trtkit.errors import SourceError
from trtkit.inputs.images import FORMATS, decode_image, image_input, placement, read_image
from trtkit.runtime.pictures import read_pictures

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def noise(width: int, height: int) -> Image.Image:
    pixels = np.random.default_rng(0).integers(0, 256, (height, width, 3), dtype=np.uint8)
    return Image.fromarray(pixels)


def photograph() -> Image.Image:
    spec = find_spec("skimage")
    if spec is None or not spec.submodule_search_locations:
        return noise(451, 300)
    return read_image(Path(next(iter(spec.submodule_search_locations))) / "data" / "chelsea.png")


def processed(processor: Any, image: Image.Image) -> Any:
    return processor(image, return_tensors="np")["pixel_values"]


@pytest.mark.parametrize("size", [(451, 300), (300, 451), (257, 256), (100, 50)])
def test_shortest_edge_and_crop_match_transformers(size: tuple[int, int]) -> None:
    """451 x 300 scales to 384.85 x 256: the longer edge is cut off to 384."""
    ours = Preprocess.model_validate({"resize": {"shortest_edge": 256}, "crop": [224, 224], "mean": MEAN, "std": STD})
    theirs = MobileNetV2ImageProcessorPil(
        size={"shortest_edge": 256},
        crop_size={"height": 224, "width": 224},
        resample=Image.Resampling.BILINEAR,
        image_mean=MEAN,
        image_std=STD,
    )
    for image in (noise(*size), photograph()):
        np.testing.assert_allclose(image_input(image, ours), processed(theirs, image), atol=1e-5)


@pytest.mark.parametrize("name", ["bilinear", "bicubic"])
def test_exact_sizes_and_filters_match_transformers(name: str) -> None:
    ours = Preprocess.model_validate(
        {"resize": {"exact": [60, 90]}, "filter": name, "mean": (0.5, 0.5, 0.5), "std": (0.5, 0.5, 0.5)}
    )
    theirs = ViTImageProcessorPil(
        size={"height": 60, "width": 90},
        resample=getattr(Image.Resampling, name.upper()),
        image_mean=[0.5] * 3,
        image_std=[0.5] * 3,
    )
    image = photograph()
    np.testing.assert_allclose(image_input(image, ours), processed(theirs, image), atol=1e-6)


def test_channels_scale_mean_and_std_are_applied_in_order() -> None:
    image = Image.new("RGB", (2, 1), (10, 20, 30))
    options = {"channels": "bgr", "scale": 0.5, "mean": (1, 2, 3), "std": (2, 4, 8)}
    got = image_input(image, Preprocess.model_validate(options))
    assert got.shape == (1, 3, 1, 2)
    assert got.dtype == np.float32
    assert got[0, :, 0, 0].tolist() == [(30 * 0.5 - 1) / 2, (20 * 0.5 - 2) / 4, (10 * 0.5 - 3) / 8]


@pytest.mark.parametrize(
    ("options", "size", "shape"),
    [
        ({"resize": {"longest_edge": 736}, "multiple_of": 32}, (384, 191), (352, 736)),
        ({"resize": {"height": 48}}, (300, 30), (48, 480)),
        ({"resize": {"height": 48}}, (7, 48), (48, 7)),
        ({"multiple_of": 32}, (5, 100), (96, 32)),
        ({}, (5, 100), (100, 5)),
    ],
)
def test_sizes_keep_the_aspect_and_the_multiple(
    options: dict[str, Any], size: tuple[int, int], shape: tuple[int, int]
) -> None:
    got = image_input(noise(*size), Preprocess.model_validate(options))
    assert got.shape[2:] == shape


def test_an_image_smaller_than_the_crop_is_padded_with_black() -> None:
    got = image_input(Image.new("RGB", (2, 2), (255, 255, 255)), Preprocess.model_validate({"crop": [4, 6]}))
    want = np.zeros((4, 6), np.float32)
    want[1:3, 2:4] = 1
    assert got[0, 1].tolist() == want.tolist()


@pytest.mark.parametrize("mode", ["L", "RGBA", "P", "CMYK"])
def test_every_kind_of_image_is_read_as_rgb(tmp_path: Path, mode: str) -> None:
    path = tmp_path / "image.tif"
    Image.new("RGB", (3, 2), (153, 153, 153)).convert(mode).save(path)
    image = read_image(path)
    assert (image.mode, image.size) == ("RGB", (3, 2))
    assert np.abs(np.asarray(image).astype(int) - 153).max() <= 1


def test_sixteen_bits_are_scaled_to_eight(tmp_path: Path) -> None:
    """Black, two greys and white; Pillow alone would clip all but black to white."""
    levels = np.array([[0, 0x4040, 0x8080, 0xFFFF]], dtype=np.uint16)
    for name in ("image.png", "image.tif"):
        Image.fromarray(levels).save(tmp_path / name)
        assert np.asarray(read_image(tmp_path / name))[0, :, 0].tolist() == [0, 0x40, 0x80, 0xFF]


@pytest.mark.parametrize(("dtype", "kind"), [(np.float32, "floating-point"), (np.int32, "32-bit integer")])
def test_values_without_a_fixed_range_are_refused(tmp_path: Path, dtype: Any, kind: str) -> None:
    path = tmp_path / "image.tif"
    Image.fromarray(np.array([[0, 1]], dtype=dtype)).save(path)
    with pytest.raises(SourceError) as error:
        read_image(path)
    assert str(error.value) == (
        f"{path}: an image of {kind} values has no fixed range for black and white\n"
        "fix: convert it to 8 or 16 bits a channel, or give .npz arrays"
    )


def test_a_photograph_is_turned_as_its_camera_says(tmp_path: Path) -> None:
    pixels = np.zeros((2, 3, 3), np.uint8)
    pixels[0, 0] = 255
    upright, exif = Image.fromarray(pixels), Image.Exif()
    exif[0x0112] = 6  # the camera was turned left: rotate by 90 degrees clockwise
    upright.save(tmp_path / "image.png", exif=exif)
    image = np.asarray(read_image(tmp_path / "image.png"))
    assert image.shape == (3, 2, 3)
    assert image[0, 1, 0] == 255


def test_channels_last_holds_the_same_values() -> None:
    image = noise(5, 4)
    last = image_input(image, Preprocess(layout="nhwc"))
    assert last.shape == (1, 4, 5, 3)
    np.testing.assert_array_equal(last.transpose(0, 3, 1, 2), image_input(image, Preprocess()))


def test_what_is_no_image_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.png"
    path.write_bytes(b"no image")
    with pytest.raises(SourceError) as error:
        read_image(path)
    assert str(error.value) == (
        f"{path}: not a readable image: its format is none of BMP, GIF, JPEG, PNG, TIFF, WEBP\n"
        "fix: give a PNG or JPEG file"
    )


@pytest.mark.parametrize(
    ("kind", "parts"), [("GIF", "frames"), ("PNG", "frames"), ("WEBP", "frames"), ("TIFF", "pages")]
)
def test_an_image_of_several_is_refused(kind: str, parts: str, tmp_path: Path) -> None:
    """Its first frame would be answered as if it were the whole."""
    path = tmp_path / "image"
    noise(20, 20).save(path, kind, save_all=True, append_images=[noise(20, 20).transpose(Image.Transpose.ROTATE_90)])
    with pytest.raises(SourceError) as error:
        read_image(path)
    assert str(error.value) == f"{path}: an image of 2 {parts}\nfix: give each as a file of its own, or a video"


def test_the_preview_in_a_cameras_file_is_no_second_image(tmp_path: Path) -> None:
    noise(20, 20).save(tmp_path / "a.jpg", "MPO", save_all=True, append_images=[noise(4, 4)])
    with Image.open(tmp_path / "a.jpg") as stored:
        assert stored.format == "MPO"
    assert read_image(tmp_path / "a.jpg").size == (20, 20)


def test_an_image_that_ends_early_or_is_too_large_says_what_helps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    noise(20, 20).save(tmp_path / "a.jpg")
    (tmp_path / "a.jpg").write_bytes((tmp_path / "a.jpg").read_bytes()[:-200])
    with pytest.raises(SourceError, match="not a readable image: image file is truncated") as error:
        read_image(tmp_path / "a.jpg")
    assert error.value.fix == "copy or download the file again"
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 100)
    noise(20, 20).save(tmp_path / "b.png")
    with pytest.raises(SourceError) as error:
        read_image(tmp_path / "b.png")
    assert str(error.value) == f"{tmp_path}/b.png: an image of more than 200 pixels\nfix: scale it down"


def test_an_open_image_is_read_like_its_file(tmp_path: Path) -> None:
    levels = np.arange(400, dtype=np.uint16).reshape(20, 20) * 160
    Image.fromarray(levels).save(tmp_path / "wide.png")
    turned = noise(20, 10).getexif()
    turned[0x112] = 6
    noise(20, 10).save(tmp_path / "turned.png", exif=turned)
    for name in ("wide.png", "turned.png"):
        with Image.open(tmp_path / name) as image:
            (picture,) = read_pictures([image])
        assert picture.image == read_image(tmp_path / name)
    assert picture.image.size == (10, 20)


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "BMP", "TIFF", "GIF", "WEBP"])
def test_a_damaged_image_is_read_or_refused_but_never_fails_otherwise(tmp_path: Path, kind: str) -> None:
    buffer, path = BytesIO(), tmp_path / "image"
    noise(20, 20).save(buffer, kind)
    generator = random.Random(0)
    refusals = 0
    for _ in range(200):
        data = bytearray(buffer.getvalue())
        for _ in range(generator.choice((1, 3, 10))):
            data[generator.randrange(min(len(data), 200))] = generator.randrange(256)
        path.write_bytes(bytes(data[: generator.randrange(len(data))] if generator.random() < 0.3 else data))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                read_image(path)
            except SourceError:
                refusals += 1
    assert refusals > 20


def test_a_line_of_pixels_is_not_scaled_to_an_image_that_no_memory_holds() -> None:
    with pytest.raises(SourceError) as error:
        image_input(Image.new("RGB", (60_000, 1)), Preprocess(resize=Resize(shortest_edge=256)))
    assert str(error.value) == (
        "image: an image of 60000x1 pixels would be scaled to 15360000x256\n"
        "fix: give one whose sides are more alike; 89478485 pixels are the limit"
    )


def test_no_side_is_scaled_to_nothing() -> None:
    assert image_input(Image.new("RGB", (1, 400)), Preprocess(resize=Resize(height=48))).shape == (1, 3, 48, 1)


def test_a_letterbox_keeps_the_aspect_between_grey_bars() -> None:
    picture = Image.new("RGB", (200, 100), (10, 20, 30))
    x = image_input(picture, Preprocess(resize=Resize(letterbox=(64, 64)), scale=1))[0]
    assert x.shape == (3, 64, 64)
    assert (x[:, :16] == 114).all()
    assert (x[:, 48:] == 114).all()
    assert (x[:, 16:48] == np.array([10, 20, 30])[:, None, None]).all()


@pytest.mark.parametrize(
    "preprocess",
    [
        Preprocess(resize=Resize(exact=(48, 80))),
        Preprocess(resize=Resize(letterbox=(64, 96))),
        Preprocess(resize=Resize(shortest_edge=64), crop=(48, 48)),
        Preprocess(resize=Resize(longest_edge=96), multiple_of=32),
        Preprocess(),
    ],
)
@pytest.mark.parametrize("size", [(200, 120), (90, 130)])
def test_a_place_in_the_input_is_found_on_the_picture(preprocess: Preprocess, size: tuple[int, int]) -> None:
    """A white square on black: where the input is brightest is the square's middle."""
    picture = Image.new("RGB", size)
    middle = (size[0] // 2 + 8, size[1] // 2 - 6)
    picture.paste((255, 255, 255), (middle[0] - 10, middle[1] - 10, middle[0] + 10, middle[1] + 10))
    bright = image_input(picture, preprocess.model_copy(update={"scale": 1.0}))[0, 0] > 127
    rows, columns = np.nonzero(bright)
    center = np.array([columns.mean() + 0.5, rows.mean() + 0.5])
    assert np.allclose(placement(size, preprocess).on_picture(center), middle, atol=1.5)


@pytest.mark.parametrize("kind", FORMATS)
def test_each_of_the_formats_is_read(kind: str) -> None:
    file = BytesIO()
    noise(9, 7).save(file, kind)
    assert decode_image(file.getvalue(), "image").size == (9, 7)


@pytest.mark.parametrize("first", [b"%!PS-Adobe-3.0 EPSF-3.0\n", b"\xc5\xd0\xd3\xc6\x1e\0\0\0"], ids=["text", "binary"])
def test_postscript_is_refused_without_starting_its_interpreter(
    first: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ghostscript = tmp_path / "gs"
    ghostscript.write_text(f"#!/bin/sh\necho 10.0; touch {tmp_path}/ran\n")
    ghostscript.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    data = first.ljust(30, b"\0") if first[0] == 0xC5 else first
    data += b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 10 10\n%%EndComments\nshowpage\n%%EOF\n"
    (tmp_path / "picture.png").write_bytes(data)
    for read in (lambda: decode_image(data, "image"), lambda: read_image(tmp_path / "picture.png")):
        with pytest.raises(SourceError, match="its format is none of BMP, GIF, JPEG, PNG, TIFF, WEBP"):
            read()
    assert not (tmp_path / "ran").exists()
