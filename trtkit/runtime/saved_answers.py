"""Answers as files: drawn pictures and videos, maps and arrays, and predictions as JSON lines or COCO's JSON."""

from __future__ import annotations

import contextlib
import json
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self

import numpy as np

from trtkit.errors import RequestError, SourceError, TrtkitError
from trtkit.files import replacing, write_output
from trtkit.inputs.samples import IMAGES
from trtkit.runtime.tasks.answers import ClassMap, DepthMap, DetectedBoxes, Embedding, Outputs
from trtkit.version import __version__

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from types import TracebackType
    from typing import IO

    from av.container import OutputContainer
    from av.video.stream import VideoStream
    from PIL import Image

    from trtkit.arrays import Array
    from trtkit.bundle.manifest import Manifest
    from trtkit.runtime.pictures import VideoFrame
    from trtkit.runtime.predict import Answered

LINES, COCO = ".jsonl", ".json"
_CLOCK = 90_000
"""Ticks per second in a video: frames keep their timestamps, whose rate may vary."""


class _Files:
    """Files that stay open from the first answer to the last; they get their final names if nothing failed."""

    def __init__(self) -> None:
        self._open = contextlib.ExitStack()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            self._open.__exit__(kind, error, trace)
            return
        with self._open:
            self.finish()

    def finish(self) -> None:
        """Write the ends of the files."""


class AnswerFolder(_Files):
    """A folder of answers: pictures and videos with drawn answers, maps, embeddings and arrays."""

    def __init__(self, folder: Path, inputs: Sequence[Path] = ()) -> None:
        """Create the folder. Raises SourceError if it holds one of the inputs, which would be overwritten."""
        super().__init__()
        own_input = next((file for file in inputs if file.parent.resolve() == folder.resolve()), None)
        if own_input is not None:
            raise SourceError(f"answers would overwrite `{own_input.name}`", str(folder), "choose another folder")
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._videos: dict[str, _Video] = {}

    def write(self, answered: Answered) -> None:
        """Write the picture with its answer, and the arrays for NumPy, named after the input."""
        drawn, name = answered.drawn(), answered.name.replace("#", "-")
        frame = None if answered.picture is None else answered.picture.frame
        if drawn is not None and frame is not None:
            self._video(frame, drawn).write(drawn, frame.seconds)
        elif drawn is not None:
            _save(drawn, self._folder / (name if Path(name).suffix.lower() in IMAGES else f"{name}.png"))
        match answered.answer:
            case ClassMap(ids=array) | DepthMap(values=array) | Embedding(vector=array):
                with replacing(self._folder / f"{name}.npy") as file:
                    np.save(file, array)
            case Outputs(outputs=outputs):
                with replacing(self._folder / f"{name}.npz".replace(".npz.npz", ".npz")) as file:
                    np.savez(file, **_portable(outputs))
            case _:
                pass

    def _video(self, frame: VideoFrame, first: Image.Image) -> _Video:
        """Return the video of a frame; a video's frames are consecutive, so that all other videos are complete."""
        if frame.video not in self._videos:
            self.finish()
            name = frame.video if frame.video.lower().endswith(".mp4") else f"{frame.video}.mp4"
            file = self._open.enter_context(replacing(self._folder / name))
            self._videos[frame.video] = _Video(file, first.size, frame.rate)
        return self._videos[frame.video]

    def finish(self) -> None:
        for video in self._videos.values():
            video.finish()
        self._open.close()
        self._videos.clear()


class _Video:
    """An MP4 file in H.264, or in MPEG-4 if ffmpeg lacks H.264; sizes are even, as both require."""

    def __init__(self, file: IO[bytes], size: tuple[int, int], rate: Fraction) -> None:
        import av

        self._container: OutputContainer = av.open(file, "w", format="mp4")
        codec: Literal["libx264", "mpeg4"] = "libx264" if "libx264" in av.codecs_available else "mpeg4"
        self._stream: VideoStream = self._container.add_stream(codec, rate=rate)
        self._stream.width, self._stream.height = (max(2, length // 2 * 2) for length in size)
        self._stream.pix_fmt = "yuv420p"
        self._stream.codec_context.time_base = Fraction(1, _CLOCK)
        self._last = -1

    def write(self, picture: Image.Image, seconds: float) -> None:
        """Add a picture, rescaled if its size differs from the first one's."""
        import av

        shown = av.VideoFrame.from_ndarray(np.asarray(picture.convert("RGB")), format="rgb24")
        frame = shown.reformat(width=self._stream.width, height=self._stream.height, format="yuv420p")
        self._last = max(self._last + 1, round(seconds * _CLOCK))
        frame.pts, frame.time_base = self._last, Fraction(1, _CLOCK)
        self._container.mux(self._stream.encode(frame))

    def finish(self) -> None:
        """Write the frames that the encoder still buffers."""
        self._container.mux(self._stream.encode())
        self._container.close()


class PredictionsFile(_Files):
    """Predictions in one file: JSON lines (.jsonl) or, for a detector, a COCO dataset (.json).

    The dataset lists the pictures as images with ids of their own, and a box's `category_id` is its class number.
    """

    def __init__(self, path: Path, manifest: Manifest, labels: Sequence[str] = ()) -> None:
        """Raises RequestError for other file types, and for COCO output of a model that is not a detector."""
        super().__init__()
        check_predictions(path, has_boxes=manifest.config.task is not None and manifest.config.task.boxes is not None)
        self._path, self._name = path, manifest.name
        self._names = dict(enumerate(labels))
        self._images: list[dict[str, object]] = []
        self._boxes: list[dict[str, object]] = []
        self._lines = self._open.enter_context(_writing(path)) if path.suffix.lower() == LINES else None

    def write(self, answered: Answered) -> None:
        """Add an input's answer."""
        if self._lines is not None:
            self._lines.write(f"{json.dumps(answered.to_json(), ensure_ascii=False)}\n".encode())
            return
        if answered.picture is None or not isinstance(answered.answer, DetectedBoxes):
            fix = f"give pictures, or a file that ends in {LINES}"
            raise SourceError("boxes in COCO's form are of pictures", answered.name, fix)
        width, height = answered.picture.image.size
        image = len(self._images) + 1
        self._images.append({"id": image, "file_name": answered.name, "width": width, "height": height})
        for box in answered.answer.boxes:
            self._names.setdefault(box.class_id, box.name)
            corner = coco_box(box.corners)
            points = [value for x, y, _ in box.keypoints for value in (round(x, 3), round(y, 3), 2)]
            self._boxes.append(
                {
                    "id": len(self._boxes) + 1,
                    "image_id": image,
                    "category_id": box.class_id,
                    "bbox": corner,
                    "area": round(corner[2] * corner[3], 3),
                    "iscrowd": 0,
                    "score": round(box.score, 6),
                    **({"keypoints": points, "num_keypoints": len(box.keypoints)} if points else {}),
                }
            )

    def finish(self) -> None:
        if self._lines is None:
            categories = [{"id": number, "name": name} for number, name in sorted(self._names.items())]
            info = {"description": f"predictions of {self._name} by trtkit {__version__}"}
            data = {"info": info, "images": self._images, "annotations": self._boxes, "categories": categories}
            write_output(self._path, json.dumps(data, ensure_ascii=False))


def check_predictions(path: Path, *, has_boxes: bool) -> None:
    """Raise RequestError for a predictions file that could not be written."""
    if path.suffix.lower() not in {LINES, COCO}:
        fix = f"end it in {LINES} for JSON lines, or in {COCO} for COCO's form"
        raise RequestError(f"unknown kind of file `{path.suffix}`", "predictions", fix)
    if path.suffix.lower() == COCO and not has_boxes:
        raise RequestError("COCO's form is for detectors", "predictions", f"end the file in {LINES}")
    if not path.absolute().parent.is_dir():
        raise RequestError(f"`{path}` cannot be written: no such folder", "predictions", "make the folder")


def coco_box(corners: tuple[float, float, float, float]) -> list[float]:
    """Return corners in COCO's form: x, y, width, height."""
    x1, y1, x2, y2 = corners
    return [round(value, 3) for value in (x1, y1, x2 - x1, y2 - y1)]


def _save(picture: Image.Image, path: Path) -> None:
    from PIL import Image

    with replacing(path) as file:
        picture.save(file, Image.registered_extensions()[path.suffix.lower()])


@contextlib.contextmanager
def _writing(path: Path) -> Iterator[IO[bytes]]:
    """Yield a file that replaces `path` on success. Raises TrtkitError."""
    try:
        with replacing(path) as file:
            yield file
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise TrtkitError(f"cannot be written: {reason}", str(path), "choose a writable folder with space") from None


def _portable(outputs: dict[str, Array]) -> dict[str, Any]:
    """Return arrays in types that NumPy can save, which exclude bf16."""
    return {name: value.astype(np.float32) if value.dtype.kind == "V" else value for name, value in outputs.items()}
