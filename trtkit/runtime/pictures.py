"""Pictures from user input: files, folders, videos, file contents, arrays and PIL images."""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from trtkit.errors import SourceError
from trtkit.inputs.images import check_image, decode_image, read_image, upright_rgb
from trtkit.inputs.samples import IMAGES

if TYPE_CHECKING:
    from PIL import Image

    from trtkit.arrays import Array

    PictureInput = Image.Image | Path | str | bytes | Array

VIDEOS = {".mp4", ".mov", ".mkv", ".avi", ".webm", ".m4v"}
ARRAYS, TEXTS = ".npz", ".txt"
_PICTURES = f"pictures ({', '.join(sorted(IMAGES))}), videos ({', '.join(sorted(VIDEOS))})"
_KINDS = f"{_PICTURES}, {TEXTS} and {ARRAYS}"


@dataclass(frozen=True)
class VideoFrame:
    """The origin of a video's picture. video: the file's name. seconds: presentation time. rate: frames per second."""

    video: str
    seconds: float
    rate: Fraction


@dataclass(frozen=True, eq=False)
class Picture:
    """An upright RGB picture. name: of its file, for a frame with its number. frame: None outside of videos."""

    name: str
    image: Image.Image
    frame: VideoFrame | None = None


def input_files(paths: Sequence[Path]) -> list[Path]:
    """Return the files to read, those of folders sorted by name. Raises SourceError for files that are not pictures."""
    files = [file for path in paths for file in _files(path)]
    names = [file.name for file in files]
    twice = next((file for index, file in enumerate(files) if file.name in names[:index]), None)
    if twice is not None:
        what = f"two inputs are called `{twice.name}`, so their answers would overwrite each other"
        raise SourceError(what, str(twice), "rename one, or run them separately")
    unknown = [file for file in files if file.suffix.lower() not in IMAGES | VIDEOS | {ARRAYS, TEXTS}]
    if unknown:
        raise SourceError(f"unknown kind of file `{unknown[0].suffix}`", str(unknown[0]), f"give {_KINDS}")
    for file in files:
        if file.suffix.lower() in IMAGES:
            check_image(file)
    return files


def as_items(items: object) -> Iterable[object]:
    """Return several items unchanged, and a single one in a list."""
    from PIL import Image

    is_one = isinstance(items, str | bytes | bytearray | Path | Image.Image | io.IOBase)
    is_one = is_one or (isinstance(items, np.ndarray) and items.ndim < 4)
    if is_one or not isinstance(items, Iterable):
        return [items]
    return items


def read_pictures(items: Iterable[object], every: int = 1) -> Iterator[Picture]:
    """Yield pictures and video frames as they are read.

    items: paths of pictures, videos and folders of them, PIL images, uint8 arrays [height, width, 3] in RGB order, and
    the bytes of image files. every: take each n-th frame of a video. Raises SourceError for items that cannot be read.
    """
    from PIL import Image

    for index, item in enumerate(items):
        match item:
            case str() | Path():
                for file in _files(Path(item)):
                    yield from _of_file(file, every)
            case Image.Image():
                yield Picture(f"image{index}", upright_rgb(item, f"image{index}"))
            case np.ndarray():
                yield Picture(f"image{index}", _of_array(item))
            case bytes() | bytearray():
                yield Picture(f"image{index}", decode_image(bytes(item), f"image{index}"))
            case _:
                fix = "give a path, the bytes of an image file, a uint8 array or a PIL image"
                raise SourceError(f"expected a picture or its path, got {type(item).__name__}", "predict", fix)


def _of_file(file: Path, every: int) -> Iterator[Picture]:
    suffix = file.suffix.lower()
    if suffix in VIDEOS:
        yield from _frames(file, every)
    elif suffix in {ARRAYS, TEXTS}:
        fix = "use `trtkit run`, or `model.run` for arrays" if suffix == ARRAYS else "give texts to a text encoder"
        raise SourceError(f"a {suffix} file is not a picture", str(file), fix)
    else:
        yield Picture(file.name, read_image(file))


def _of_array(array: Array) -> Image.Image:
    """Return RGB pixels [height, width, 3] as a picture. Raises SourceError for other arrays."""
    from PIL import Image

    if array.dtype != np.uint8 or array.ndim != 3 or array.shape[2] != 3 or not array.size:
        what = f"expected a picture as a uint8 array [height, width, 3], got {array.dtype} {list(array.shape)}"
        fix = "give RGB bytes (`frame[..., ::-1]` of OpenCV's BGR); network inputs go to `run`"
        raise SourceError(what, "predict", fix)
    return Image.fromarray(np.ascontiguousarray(array))


def _files(path: Path) -> list[Path]:
    if path.is_file():
        return [path]
    if not path.is_dir():
        is_url = path.parts[:1] in [("http:",), ("https:",)]
        raise SourceError("no such file", str(path), "download it first" if is_url else "check the path")
    files = sorted(file for file in path.iterdir() if file.suffix.lower() in IMAGES | VIDEOS)
    if not files:
        raise SourceError("the folder holds no pictures and no videos", str(path), f"give {_PICTURES}")
    return files


def _frames(path: Path, every: int) -> Iterator[Picture]:
    import av
    from PIL import Image

    try:
        with av.open(str(path)) as video:
            if not video.streams.video:
                raise SourceError("the file has no pictures", str(path), "give a video")
            rate = video.streams.video[0].average_rate or Fraction(25)
            for number, frame in enumerate(video.decode(video=0)):
                if number % every == 0:
                    image = Image.fromarray(frame.to_ndarray(format="rgb24"))
                    seconds = number / float(rate) if frame.time is None else frame.time
                    shown = VideoFrame(path.name, seconds, rate)
                    yield Picture(f"{path.name}#{number}", image.rotate(frame.rotation, expand=True), shown)
    except (av.FFmpegError, OSError) as error:
        raise SourceError(f"not a readable video: {error}", str(path), "use a format that ffmpeg reads") from None
