"""The pictures of a run: files, folders of them, and frames of videos."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from trtkit.errors import SourceError
from trtkit.inputs.images import check_image, read_image
from trtkit.inputs.samples import IMAGES

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from PIL import Image

VIDEOS = {".mp4", ".mov", ".mkv", ".avi", ".webm", ".m4v"}
ARRAYS, TEXTS = ".npz", ".txt"
_KINDS = f"pictures ({', '.join(sorted(IMAGES))}), videos ({', '.join(sorted(VIDEOS))}), {TEXTS} and {ARRAYS}"


@dataclass(frozen=True, eq=False)
class Picture:
    """An upright RGB picture. name: its file's, a frame's with its number."""

    name: str
    image: Image.Image


def input_files(paths: Sequence[Path]) -> list[Path]:
    """Return the files to read, folders' in order of their names. Raises SourceError for what is not a picture."""
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


def read_pictures(files: Sequence[Path], every: int = 1) -> Iterator[Picture]:
    """Yield pictures and frames of videos as they are read. every: of videos, each n-th frame.

    Raises SourceError for a file that cannot be read.
    """
    for file in files:
        if file.suffix.lower() in VIDEOS:
            yield from _frames(file, every)
        else:
            yield Picture(file.name, read_image(file))


def _files(path: Path) -> list[Path]:
    if path.is_file():
        return [path]
    if not path.is_dir():
        raise SourceError("no such file", str(path), "check the path")
    files = sorted(file for file in path.iterdir() if file.suffix.lower() in IMAGES | VIDEOS)
    if not files:
        raise SourceError("the folder holds no pictures and no videos", str(path), f"give {_KINDS}")
    return files


def _frames(path: Path, every: int) -> Iterator[Picture]:
    import av
    from PIL import Image

    try:
        with av.open(str(path)) as video:
            if not video.streams.video:
                raise SourceError("the file has no pictures", str(path), "give a video")
            for number, frame in enumerate(video.decode(video=0)):
                if number % every == 0:
                    image = Image.fromarray(frame.to_ndarray(format="rgb24"))
                    yield Picture(f"{path.name}#{number}", image.rotate(frame.rotation, expand=True))
    except (av.FFmpegError, OSError) as error:
        raise SourceError(f"not a readable video: {error}", str(path), "use a format that ffmpeg reads") from None
