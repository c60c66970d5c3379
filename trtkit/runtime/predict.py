"""Answers of vision bundles: preprocess, run in batches, and read the outputs according to the config's task."""

from __future__ import annotations

import io
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from trtkit.errors import SourceError
from trtkit.inputs.images import IMAGE, PicturePlacement, input_size, placement
from trtkit.inputs.samples import Sample, check_samples, picture_input, read_npz
from trtkit.runtime.drawing import draw
from trtkit.runtime.pictures import ARRAYS, TEXTS, Picture, read_pictures
from trtkit.runtime.predict_text import open_text_predictor, read_texts, takes_text
from trtkit.runtime.tasks.answers import Outputs
from trtkit.runtime.tasks.reader import NO_THRESHOLDS, Thresholds, open_reader

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
    """A picture as an input [1, ...], and its placement in it."""

    array: Array
    placed: PicturePlacement


@dataclass(frozen=True)
class PredictOptions:
    """Options for answering pictures.

    batch: pictures per call; None for the size that the engine was tuned for. top_k: classes per answer. every: take
    each n-th frame of a video. thresholds: which boxes of a detector count.
    """

    batch: int | None = None
    top_k: int = 5
    every: int = 1
    thresholds: Thresholds = NO_THRESHOLDS


@dataclass(frozen=True)
class _RowLimits:
    """Limits on the rows of a call. usual: the number that the engine was tuned for."""

    least: int
    usual: int
    most: int


@dataclass(frozen=True, eq=False)
class Predictor:
    """A bundle that answers pictures. batch: maximum pictures per call."""

    bundle: Bundle
    run: Run
    reader: TaskReader
    preprocess: Preprocess
    batch: int
    least: int

    def __call__(self, pictures: Iterable[Image.Image]) -> Iterator[Answer]:
        """Yield the answer to each picture, in order; consecutive pictures with equal input sizes run together."""
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
        """Run a batch, padded with copies of the last picture to the network's minimum number of rows."""
        rows = [item.array for item in batch]
        x = np.concatenate([*rows, *[rows[-1]] * (self.least - len(rows))])
        outputs = self.run({self.bundle.manifest.inputs[0].name: x})
        kept = {name: value[: len(batch)] for name, value in outputs.items()}
        return self.reader.read(kept, [item.placed for item in batch], input_size(x, self.preprocess))


def open_predictor(bundle: Bundle, run: Run, options: PredictOptions = PredictOptions()) -> Predictor:
    """Return a predictor for pictures. run: computes the bundle's network.

    Raises SourceError if the config does not define how a picture becomes the only input, the outputs do not match its
    task, or no profile includes the batch; RequestError for thresholds that do not apply.
    """
    manifest, batch = bundle.manifest, options.batch
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
    reader = open_reader(bundle, options.top_k, options.thresholds)
    return Predictor(bundle, run, reader, preprocess, batch or rows.usual, rows.least)


@dataclass(frozen=True, eq=False)
class Answered:
    """An input with its answer. picture: None for arrays and texts."""

    name: str
    answer: Answer
    picture: Picture | None = None

    def drawn(self) -> Image.Image | None:
        """Return the picture with the answer on it; None if there is no picture or nothing to show."""
        return None if self.picture is None else draw(self.picture.image, self.answer)

    def to_json(self) -> dict[str, object]:
        """Return the answer as a line of `trtkit run --json`."""
        return {"input": self.name, **self.answer.to_json()}

    def __str__(self) -> str:
        return f"{self.name}: {self.answer}"

    def _repr_png_(self) -> bytes | None:
        """Return the image that a notebook shows."""
        drawn, data = self.drawn(), io.BytesIO()
        if drawn is None:
            return None
        drawn.save(data, "PNG")
        return data.getvalue()


def answer_pictures(
    bundle: Bundle, run: Run, items: Iterable[object], options: PredictOptions = PredictOptions()
) -> Iterator[Answered]:
    """Yield each picture with its answer, in order. items: as for `read_pictures`.

    Raises SourceError, and RequestError for options, before the first picture is read.
    """
    predictor = open_predictor(bundle, run, options)
    running: deque[Picture] = deque()

    def images() -> Iterator[Image.Image]:
        for picture in read_pictures(items, options.every):
            running.append(picture)
            yield picture.image

    def answered() -> Iterator[Answered]:
        try:
            for answer in predictor(images()):
                picture = running.popleft()
                yield Answered(picture.name, answer, picture)
        except SourceError as error:
            if error.where != IMAGE:
                raise
            raise SourceError(error.what, running[-1].name, error.fix) from None  # the one that was read last

    return answered()


def answer_files(bundle: Bundle, run: Run, files: Sequence[Path], options: PredictOptions) -> Iterator[Answered]:
    """Yield the answers to pictures, frames, lines of text and .npz files, in order. Raises SourceError."""
    arrays = [file for file in files if file.suffix.lower() == ARRAYS]
    texts = [file for file in files if file.suffix.lower() == TEXTS]
    if texts and not takes_text(bundle):
        raise SourceError("the model takes no text", str(texts[0]), "give it what its inputs need, such as pictures")
    for file in texts:
        lines = read_texts(file)
        answers = open_text_predictor(bundle, run, options.batch, options.top_k)(lines)
        yield from (Answered(f"{file.name}:{number}", answer) for number, answer in enumerate(answers, 1))
    pictures = [file for file in files if file not in [*arrays, *texts]]
    if pictures:
        yield from answer_pictures(bundle, run, pictures, options)
    for file in arrays:
        yield from _answer_arrays(bundle, run, file, open_reader(bundle, options.top_k, options.thresholds))


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
    """Return the limits on the only input's rows. Raises SourceError if rows are not separate pictures."""
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
