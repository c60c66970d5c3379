"""Answers of text encoders' bundles: tokenize, run in batches, and read the outputs according to the config's task."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from trtkit.errors import SourceError
from trtkit.files import read_text
from trtkit.inputs.images import PicturePlacement
from trtkit.inputs.samples import TEXT_MASK, as_dtype
from trtkit.runtime.tasks.answers import Outputs
from trtkit.runtime.tasks.reader import open_reader
from trtkit.runtime.text.tokenizer import open_tokenizer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from trtkit.arrays import Array, Arrays
    from trtkit.bundle.bundle import Bundle
    from trtkit.runtime.tasks.answers import Answer
    from trtkit.runtime.tasks.reader import TaskReader
    from trtkit.runtime.text.tokenizer import Tokenizer

TextInput = str | tuple[str, str]
"""A text, or a pair of texts such as a query and a passage."""
_NOWHERE = PicturePlacement((1, 1), (1, 1), (0, 0))


@dataclass(frozen=True, eq=False)
class TextPredictor:
    """A bundle that answers texts. batch: maximum texts per call. least, most: limits on tokens per text."""

    bundle: Bundle
    run: Callable[[Mapping[str, Array]], Arrays]
    reader: TaskReader
    tokenizer: Tokenizer
    batch: int
    least: tuple[int, int]
    most: int

    def __call__(self, texts: Iterable[TextInput]) -> Iterator[Answer]:
        """Yield the answer to each text, in order. Texts longer than the engine's limit are truncated."""
        waiting: list[TextInput] = []
        for text in texts:
            waiting.append(text)
            if len(waiting) == self.batch:
                yield from self._answers(waiting)
                waiting = []
        if waiting:
            yield from self._answers(waiting)

    def _answers(self, texts: Sequence[TextInput]) -> list[Answer]:
        rows, tokens = self.least
        first, second = zip(*[text if isinstance(text, tuple) else (text, None) for text in texts], strict=True)
        if None in second and any(second):
            raise SourceError("texts and pairs of texts are mixed", "texts", "give one or the other")
        pairs = {} if None in second else {"text_pair": list(second)}
        names = {record.name for record in self.bundle.manifest.inputs}
        tokenized = self.tokenizer.hf(
            list(first),
            **pairs,
            padding=True,
            truncation=True,
            max_length=self.most,
            return_token_type_ids="token_type_ids" in names,
            return_tensors="np",
        )
        inputs = {}
        for record in self.bundle.manifest.inputs:
            array = tokenized[record.name]
            array = np.pad(array, ((0, 0), (0, max(0, tokens - array.shape[1]))))
            inputs[record.name] = as_dtype(np.concatenate([array, *[array[-1:]] * (rows - len(array))]), record.dtype)
        lengths = [int(mask.sum()) for mask in inputs[TEXT_MASK]][: len(texts)]
        outputs = {name: value[: len(texts)] for name, value in self.run(inputs).items()}
        answers = self.reader.read(outputs, [_NOWHERE] * len(texts), (1, 1))
        return [self._own(answer, length) for answer, length in zip(answers, lengths, strict=True)]

    def _own(self, answer: Answer, length: int) -> Answer:
        if not isinstance(answer, Outputs):
            return answer
        by_token = {
            tensor.name for tensor in self.bundle.manifest.outputs if len(tensor.shape) > 1 and tensor.shape[1] == -1
        }
        return Outputs(
            {name: value[:, :length] if name in by_token else value for name, value in answer.outputs.items()}
        )


def takes_text(bundle: Bundle) -> bool:
    """Whether a bundle is a text encoder."""
    names = {record.name for record in bundle.manifest.inputs}
    return {"input_ids", TEXT_MASK} <= names <= {"input_ids", TEXT_MASK, "token_type_ids"}


def open_text_predictor(
    bundle: Bundle, run: Callable[[Mapping[str, Array]], Arrays], batch: int | None = None, top_k: int = 5
) -> TextPredictor:
    """Return a predictor for texts. run: computes the bundle's network.

    batch: texts per call; None for the number that the engine was tuned for. Raises SourceError for a batch outside all
    profiles and for a bundle without a tokenizer.
    """
    manifest = bundle.manifest
    tokenizer = open_tokenizer(bundle.path / "model")
    if tokenizer is None:
        what, fix = (
            "the bundle has no tokenizer",
            "build it from a folder that has one, or use `trtkit.open_model(...).run`",
        )
        raise SourceError(what, manifest.name, fix)
    if not tokenizer.hf.pad_token:
        raise SourceError("the tokenizer has no padding token", manifest.name, "use `trtkit.open_model(...).run`")
    shapes = [profile["input_ids"] for profile in manifest.profiles]
    rows = max(shape.max[0] for shape in shapes)
    if batch is not None and not 1 <= batch <= rows:
        raise SourceError(f"a batch of {batch} texts; the engine takes 1 to {rows}", "batch", "choose fewer")
    least = (min(shape.min[0] for shape in shapes), min(shape.min[1] for shape in shapes))
    most = max(shape.max[1] for shape in shapes)
    reader = open_reader(bundle, top_k)
    return TextPredictor(bundle, run, reader, tokenizer, batch or shapes[0].opt[0], least, most)


def read_texts(file: Path) -> list[TextInput]:
    """Return the texts of a file, one per line; a tab separates the two texts of a pair. Raises SourceError."""
    try:
        lines = [line for line in read_text(file).splitlines() if line.strip()]
    except (OSError, UnicodeDecodeError) as error:
        raise SourceError(f"cannot be read: {error}", str(file), "give a text file in UTF-8") from None
    if not lines:
        raise SourceError("the file has no texts", str(file), "write one text per line")
    return [(line.partition("\t")[0], line.partition("\t")[2]) if "\t" in line else line for line in lines]
