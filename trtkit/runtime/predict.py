"""Answer pictures with a vision bundle: preprocess, run in batches, read the outputs as the config's task says."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from trtkit.errors import SourceError
from trtkit.inputs.images import PicturePlacement, check_image, input_size, placement, read_image
from trtkit.inputs.samples import IMAGES, Sample, check_samples, picture_input, read_npz
from trtkit.runtime.predict_text import open_text_predictor, read_texts, takes_text
from trtkit.runtime.tasks.answers import Outputs
from trtkit.runtime.tasks.reader import open_reader

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from PIL import Image

    from trtkit.arrays import Array, Arrays
    from trtkit.bundle.bundle import Bundle
    from trtkit.bundle.manifest import Manifest
    from trtkit.config.task import Preprocess
    from trtkit.runtime.tasks.answers import Answer
    from trtkit.runtime.tasks.reader import TaskReader

    Run = Callable[[Mapping[str, Array]], Arrays]


@dataclass(frozen=True)
class _Prepared:
    """A picture as an input [1, ...], and where it lies in it."""

    array: Array
    placed: PicturePlacement


@dataclass(frozen=True)
class FileOptions:
    """How files are answered. batch: pictures of a call. top_k: classes of an answer. every: each n-th frame."""

    batch: int | None = None
    top_k: int = 5
    every: int = 1


@dataclass(frozen=True)
class _RowLimits:
    """How many rows a call takes. usual: what the engine was tuned for."""

    least: int
    usual: int
    most: int


@dataclass(frozen=True, eq=False)
class Predictor:
    """A bundle that answers pictures. batch: the most pictures of a call."""

    bundle: Bundle
    run: Run
    reader: TaskReader
    preprocess: Preprocess
    batch: int
    least: int

    def __call__(self, pictures: Iterable[Image.Image]) -> Iterator[Answer]:
        """Yield the answer to each picture, in order; pictures that make inputs of one size run together."""
        waiting: list[_Prepared] = []
        for picture in pictures:
            prepared = self._prepared(picture)
            if waiting and (prepared.array.shape != waiting[0].array.shape or len(waiting) == self.batch):
                yield from self._answers(waiting)
                waiting = []
            waiting.append(prepared)
        if waiting:
            yield from self._answers(waiting)

    def _prepared(self, picture: Image.Image) -> _Prepared:
        record = self.bundle.manifest.inputs[0]
        array = picture_input(picture, self.preprocess, record.dtype)
        return _Prepared(array, placement(picture.size, self.preprocess))

    def _answers(self, batch: Sequence[_Prepared]) -> list[Answer]:
        """Run a batch; a network that takes no fewer rows is given the last picture again."""
        rows = [item.array for item in batch]
        x = np.concatenate([*rows, *[rows[-1]] * (self.least - len(rows))])
        outputs = self.run({self.bundle.manifest.inputs[0].name: x})
        kept = {name: value[: len(batch)] for name, value in outputs.items()}
        return self.reader.read(kept, [item.placed for item in batch], input_size(x, self.preprocess))


def open_predictor(bundle: Bundle, run: Run, batch: int | None = None, top_k: int = 5) -> Predictor:
    """Return what answers pictures. run: computes the bundle's network.

    batch: pictures of a call, what the engine was tuned for if None.

    Raises SourceError if the config does not define how a picture becomes the only input, the outputs are not those of
    its task, or no profile takes the batch.
    """
    manifest = bundle.manifest
    preprocess = manifest.config.preprocess
    if preprocess is None or len(manifest.inputs) != 1:
        fix = (
            "add `preprocess:` to the config and build again"
            if preprocess is None
            else "use `trtkit.open_model(...).run`"
        )
        raise SourceError("the config does not define how a picture becomes the model's only input", manifest.name, fix)
    rows = _rows(manifest)
    if batch is not None and not 1 <= batch <= rows.most:
        raise SourceError(f"a batch of {batch} pictures; the engine takes 1 to {rows.most}", "batch", "choose fewer")
    return Predictor(bundle, run, open_reader(bundle, top_k), preprocess, batch or rows.usual, rows.least)


@dataclass(frozen=True, eq=False)
class Answered:
    """An input with its answer. picture: None for arrays."""

    name: str
    answer: Answer
    picture: Image.Image | None = None


def answer_files(bundle: Bundle, run: Run, files: Sequence[Path], options: FileOptions) -> Iterator[Answered]:
    """Yield the answer to each picture, frame or line of text, and each .npz file, in order. Raises SourceError."""
    arrays = [file for file in files if file.suffix.lower() == ARRAYS]
    texts = [file for file in files if file.suffix.lower() == TEXTS]
    if texts and not takes_text(bundle):
        raise SourceError("the model takes no text", str(texts[0]), "give it what its inputs need, such as pictures")
    for file in texts:
        lines = read_texts(file)
        answers = open_text_predictor(bundle, run, options.batch, options.top_k)(lines)
        yield from (Answered(f"{file.name}:{number}", answer) for number, answer in enumerate(answers, 1))
    if len(arrays) + len(texts) != len(files):
        predictor = open_predictor(bundle, run, options.batch, options.top_k)
        running: deque[Picture] = deque()

        def images() -> Iterator[Image.Image]:
            for picture in read_pictures([file for file in files if file not in [*arrays, *texts]], options.every):
                running.append(picture)
                yield picture.image

        for answer in predictor(images()):
            picture = running.popleft()
            yield Answered(picture.name, answer, picture.image)
    for file in arrays:
        yield from _answer_arrays(bundle, run, file, open_reader(bundle, options.top_k))


def _answer_arrays(bundle: Bundle, run: Run, file: Path, reader: TaskReader) -> Iterator[Answered]:
    """Yield the answer to each row of one file's arrays, or all outputs if the config has no task."""
    sample = Sample(file.name, read_npz(file))
    check_samples([sample], [record.tensor_spec() for record in bundle.manifest.inputs])
    outputs = run(sample.inputs)
    shape = next(iter(sample.inputs.values())).shape
    if reader.task is None or len(shape) != 4:
        yield Answered(file.name, Outputs(outputs))
        return
    preprocess = bundle.manifest.config.preprocess
    height, width = shape[1:3] if preprocess is not None and preprocess.layout == "nhwc" else shape[2:]
    whole = PicturePlacement((width, height), (1, 1), (0, 0))
    for row, answer in enumerate(reader.read(outputs, [whole] * shape[0], (width, height))):
        yield Answered(f"{file.name}[{row}]", answer)


def _rows(manifest: Manifest) -> _RowLimits:
    """Return how many rows the only input may have. Raises SourceError for rows that are not pictures of their own."""
    record = manifest.inputs[0]
    if record.shape[0] != -1:
        rows = _RowLimits(record.shape[0], record.shape[0], record.shape[0])
    else:
        shapes = [profile[record.name] for profile in manifest.profiles]
        rows = _RowLimits(
            min(shape.min[0] for shape in shapes), shapes[0].opt[0], max(shape.max[0] for shape in shapes)
        )
    if manifest.verify is None or manifest.verify.batch_rows != "mixed":
        return rows
    if rows.least > 1:
        what = f"the network takes at least {rows.least} rows, and they depend on each other"
        raise SourceError(what, manifest.name, "use `trtkit.open_model(...).run`")
    return _RowLimits(1, 1, 1)


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
