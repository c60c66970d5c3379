"""Inputs for verifying a network: images, arrays, Polygraphy data files, or seeded random data."""

from __future__ import annotations

import math
import tokenize
import zipfile
import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from trtkit.dtypes import dtype_of
from trtkit.errors import DATA_ERRORS, SourceError
from trtkit.files import open_regular
from trtkit.inputs.images import check_image, image_input, read_image
from trtkit.sources import package_file

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    import onnx
    from PIL import Image

    from trtkit.arrays import Array, Arrays
    from trtkit.config.schema import ModelConfig
    from trtkit.config.task import Preprocess
    from trtkit.network.input_spec import ResolvedProfile
    from trtkit.network.onnx.io import OnnxTensorSpec

# Archives up to the first size expanded are always read; larger ones may expand by the second factor at most.
_ALWAYS_EXPANDED, _MAX_EXPANSION = 256 << 20, 100
IMAGES = {".png", ".jpg", ".jpeg", ".bmp", ".webp", ".tif", ".tiff"}
_SUFFIXES = {*IMAGES, ".npz", ".json"}
TEXT_MASK = "attention_mask"


@dataclass(frozen=True)
class Sample:
    """Inputs of one run and their name in reports."""

    name: str
    inputs: Arrays


def read_samples(paths: Sequence[str], config: ModelConfig, inputs: Sequence[OnnxTensorSpec]) -> list[Sample]:
    """Read files and folders of images, .npz arrays or Polygraphy JSON data.

    Raises SourceError for inputs that are unreadable, do not match the network or are not finite.
    """
    samples = [sample for path in paths for sample in _read(path, config, inputs)]
    check_samples(samples, inputs)
    return samples


def check_files(paths: Sequence[str], config: ModelConfig) -> None:
    """Refuse unreadable inputs before the network is written, by path, kind and image header.

    Raises SourceError.
    """
    for path in paths:
        for file in sample_files(package_file.resolve(path, config.verify.requires)):
            _check_kind(file)
            if file.suffix.lower() in IMAGES:
                _preprocess(config, file)
                check_image(file)


def sample_files(path: Path) -> list[Path]:
    """Return the input files of a folder in order, or the file itself. Raises SourceError if there are none."""
    if not path.is_dir():
        return [path]
    files = sorted(file for file in path.iterdir() if file.suffix.lower() in _SUFFIXES)
    if not files:
        kinds = ", ".join(sorted(_SUFFIXES))
        raise SourceError("the folder holds no inputs", str(path), f"put files in it that end in {kinds}")
    return files


def sample_pictures(paths: Sequence[str], config: ModelConfig) -> dict[str, Path]:
    """Return the images among input files and folders, by the names of their samples."""
    roots = [package_file.resolve(path, config.verify.requires) for path in paths]
    files = [file for root in roots for file in sample_files(root)]
    return {file.name: file for file in files if file.suffix.lower() in IMAGES}


def check_samples(samples: Sequence[Sample], inputs: Sequence[OnnxTensorSpec]) -> None:
    """Refuse names, types, shapes and values that do not match the network. Raises SourceError."""
    for sample in samples:
        check_names(sample, inputs)
        for spec in inputs:
            _check_array(sample.inputs[spec.name], spec, sample.name)


def check_names(sample: Sample, inputs: Sequence[OnnxTensorSpec]) -> None:
    """Refuse unknown and missing inputs. Raises SourceError."""
    known = [spec.name for spec in inputs]
    wrong = [f"unknown input `{name}`" for name in sample.inputs if name not in known]
    wrong += [f"missing input `{name}`" for name in known if name not in sample.inputs]
    if wrong:
        raise SourceError(", ".join(wrong), sample.name, f"the network's inputs are {', '.join(known)}")


def read_npz(path: Path) -> Arrays:
    """Return the arrays of an .npz file. Raises SourceError if it is unreadable or expands too much."""
    try:
        with open_regular(path) as file:
            with zipfile.ZipFile(file) as archive:
                _check_archive(archive, path)
            file.seek(0)  # for a file that is not an archive, NumPy reports pickled data
            with np.load(file, allow_pickle=False) as data:
                return {name: np.asarray(data[name]) for name in data.files}
    except (*DATA_ERRORS, EOFError, OSError, tokenize.TokenError, zipfile.BadZipFile, zlib.error) as error:
        raise SourceError(f"not a readable .npz file: {error}", str(path), "save it with numpy.savez") from None


def _check_archive(archive: zipfile.ZipFile, path: Path) -> None:
    """Raise SourceError for an archive that expands too much, or arrays larger than their entries.

    Limits on expansion: 256 MiB, or 100 times the file's size if that is more. Entries are checked because NumPy
    allocates the size in an array's header before it reads the data.
    """
    expanded = sum(entry.file_size for entry in archive.infolist())
    if expanded > max(_ALWAYS_EXPANDED, _MAX_EXPANSION * path.stat().st_size):
        what = f"{path.stat().st_size} bytes expand to {expanded}"
        raise SourceError(what, str(path), "save it with numpy.savez, which does not compress")
    for entry in archive.infolist():
        with archive.open(entry) as file:
            version = np.lib.format.read_magic(file)
            read: Any = getattr(np.lib.format, f"read_array_header_{version[0]}_{version[1]}")
            shape, _, dtype = read(file)
        if math.prod(shape) * dtype.itemsize > entry.file_size:
            what = f"array `{entry.filename}` is to be {dtype} of shape {list(shape)}, it has {entry.file_size} bytes"
            raise SourceError(what, str(path), "save it with numpy.savez")


def random_sample(
    name: str,
    shapes: Mapping[str, tuple[int, ...]],
    config: ModelConfig,
    inputs: Sequence[OnnxTensorSpec],
    seed: int = 0,
) -> Sample:
    """Return seeded random inputs: normal floats, bytes, integers 0 and 1, or values in the config's ranges.

    A text's mask [B, S] shows at least the first token, and a random number of those after it.
    """
    generator = np.random.default_rng(seed)
    arrays = {}
    for spec in inputs:
        shape, limits = shapes[spec.name], config.verify.ranges.get(spec.name)
        if spec.name == TEXT_MASK and len(shape) == 2 and limits is None:
            drawn: Array = np.arange(shape[1]) < generator.integers(1, shape[1] + 1, (shape[0], 1))
        elif not dtype_of(spec.dtype).is_float:
            low, high = limits or ((0, 255) if spec.dtype == "uint8" else (0, 1))
            drawn = np.floor(generator.uniform(low, high + 1, shape))
        else:
            drawn = generator.uniform(*limits, shape) if limits else generator.standard_normal(shape)
        arrays[spec.name] = as_dtype(np.asarray(drawn), spec.dtype)
    return Sample(name, arrays)


def wrapped_sample(name: str, shapes: Mapping[str, tuple[int, ...]], sample: Sample) -> Sample:
    """Return `sample` cropped or repeated along every axis to the given shapes: real data in any size."""
    arrays = {}
    for key, array in sample.inputs.items():
        indices = [np.arange(size) % have for size, have in zip(shapes[key], array.shape, strict=True)]
        arrays[key] = array[np.ix_(*indices)]
    return Sample(name, arrays)


def check_profiles(sample: Sample, profiles: Sequence[ResolvedProfile]) -> None:
    """Refuse shapes that no optimization profile covers. Raises SourceError naming the bounds."""
    if not profiles or any(_covers(profile, sample) for profile in profiles):
        return
    for name, shape in profiles[0].items():
        actual = sample.inputs[name].shape
        for axis, (low, size, high) in enumerate(zip(shape.min, actual, shape.max, strict=True)):
            if not low <= size <= high:
                what = f"dimension {axis} of `{name}` is {size}; the profile allows {low} to {high}"
                raise SourceError(what, sample.name, "give other inputs, or widen the profile and build again")
    raise SourceError("no single profile covers the shapes of all inputs", sample.name, "add a profile that does")


def picture_input(picture: Image.Image, preprocess: Preprocess, dtype: str) -> Array:
    """Return a picture as an input [1, ...] of trtkit's type `dtype`.

    Raises SourceError for an integer input if `preprocess` scales pixels to fractions, which would be truncated.
    """
    is_plain = (preprocess.scale, preprocess.mean, preprocess.std) == (1.0, (0.0,) * 3, (1.0,) * 3)
    if not dtype_of(dtype).is_float and not is_plain:
        what = f"`preprocess` scales pixels to fractions, and the input is {dtype}"
        raise SourceError(
            what, "preprocess", "set `scale: 1.0` and leave out `mean` and `std`: the model scales itself"
        )
    return as_dtype(image_input(picture, preprocess), dtype)


def as_dtype(values: Array, dtype: str) -> Array:
    """Return `values` in trtkit's type `dtype`; bf16 through ml_dtypes."""
    name = dtype_of(dtype).numpy
    if name == "bfloat16":
        import ml_dtypes

        return values.astype(ml_dtypes.bfloat16)
    return values.astype(name)


def _read(text: str, config: ModelConfig, inputs: Sequence[OnnxTensorSpec]) -> list[Sample]:
    """Read one path: a folder's files in order, or a single file."""
    path = package_file.resolve(text, config.verify.requires)
    if path.is_dir():
        return [sample for file in sample_files(path) for sample in _read(str(file), config, inputs)]
    _check_kind(path)
    if path.suffix.lower() in IMAGES:
        return [_image_sample(path, config, inputs)]
    if path.suffix.lower() == ".npz":
        return [Sample(path.name, read_npz(path))]
    return _polygraphy_samples(path)


def _check_kind(path: Path) -> None:
    if path.suffix.lower() not in _SUFFIXES:
        raise SourceError(f"unknown kind of input `{path.suffix}`", str(path), f"use {', '.join(sorted(_SUFFIXES))}")


def _preprocess(config: ModelConfig, path: Path) -> Preprocess:
    """Return how an image becomes an input. Raises SourceError if the config does not define it."""
    if config.preprocess is None:
        raise SourceError("images need `preprocess:` in the config", str(path), "add it, or give .npz arrays")
    return config.preprocess


def _image_sample(path: Path, config: ModelConfig, inputs: Sequence[OnnxTensorSpec]) -> Sample:
    """Preprocess an image into the model's only input."""
    preprocess = _preprocess(config, path)
    if len(inputs) != 1:
        raise SourceError(f"an image is one input; the model has {len(inputs)}", str(path), "give .npz arrays")
    shape = inputs[0].shape
    if preprocess.layout == "nchw" and len(shape) == 4 and shape[3] == 3 != shape[1]:
        raise SourceError(f"`{inputs[0].name}` takes channels last", str(path), "set `preprocess.layout: nhwc`")
    return Sample(path.name, {inputs[0].name: picture_input(read_image(path), preprocess, inputs[0].dtype)})


def _polygraphy_samples(path: Path) -> list[Sample]:
    """Read a Polygraphy data file (`--save-inputs`): one or more feed dictionaries."""
    from polygraphy.json import load_json

    try:
        data = load_json(str(path))
    except Exception as error:
        raise SourceError(f"not a Polygraphy data file: {error}", str(path), "make it with `--save-inputs`") from None
    feeds = data if isinstance(data, list) else [data]
    if not all(isinstance(feed, dict) for feed in feeds):
        what = "not a Polygraphy data file: it holds no arrays by input name"
        raise SourceError(what, str(path), "make it with `--save-inputs`")
    return [
        Sample(f"{path.name}#{index}", {name: np.asarray(value) for name, value in feed.items()})
        for index, feed in enumerate(feeds)
    ]


def _check_array(array: Array, spec: OnnxTensorSpec, where: str) -> None:
    expected = dtype_of(spec.dtype).numpy
    if array.dtype.name != expected:
        raise SourceError(f"`{spec.name}` has type {array.dtype.name}, {expected} is needed", where, "convert it")
    fits = len(array.shape) == len(spec.shape) and all(
        isinstance(dim, str) or dim == size for dim, size in zip(spec.shape, array.shape, strict=True)
    )
    if not fits:
        wanted = ", ".join("any" if dim == f"{spec.name}.{axis}" else str(dim) for axis, dim in enumerate(spec.shape))
        what = f"`{spec.name}` has shape {list(array.shape)}; expected [{wanted}]"
        raise SourceError(what, where, "give an array of that shape")
    if dtype_of(spec.dtype).is_float and not np.isfinite(array.astype(np.float32)).all():
        raise SourceError(f"`{spec.name}` holds NaN or infinite values", where, "give finite inputs")


def _covers(profile: ResolvedProfile, sample: Sample) -> bool:
    return all(
        low <= size <= high
        for name, shape in profile.items()
        for low, size, high in zip(shape.min, sample.inputs[name].shape, shape.max, strict=True)
    )


_PASSED_ON = {"Cast", "Identity", "Reshape", "Unsqueeze", "Squeeze", "Flatten"}


def with_index_ranges(config: ModelConfig, model: onnx.ModelProto) -> ModelConfig:
    """Return the config with a range for each input that indexes a constant table and has none."""
    rows = table_rows(model)
    ranges = {name: (0.0, float(count - 1)) for name, count in rows.items() if name not in config.verify.ranges}
    verify = config.verify.model_copy(update={"ranges": {**ranges, **config.verify.ranges}})
    return config.model_copy(update={"verify": verify}) if ranges else config


def table_rows(model: onnx.ModelProto) -> dict[str, int]:
    """Return, for each input that indexes tables by Gather on axis 0, the row count of the smallest."""
    tables = {tensor.name: tensor.dims[0] for tensor in model.graph.initializer if len(tensor.dims) > 1}
    origin = {value.name: value.name for value in model.graph.input}
    rows: dict[str, int] = {}
    for node in model.graph.node:
        if node.op_type in _PASSED_ON and node.input[0] in origin:
            origin[node.output[0]] = origin[node.input[0]]
        axis = next((attribute.i for attribute in node.attribute if attribute.name == "axis"), 0)
        if node.op_type == "Gather" and axis == 0 and node.input[0] in tables and node.input[1] in origin:
            name = origin[node.input[1]]
            rows[name] = min(rows.get(name, tables[node.input[0]]), tables[node.input[0]])
    return rows
