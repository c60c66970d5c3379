"""Answers as files: an answer is written as a whole, or not at all."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import pytest
from PIL import Image

from trtkit.runtime.saved_answers import AnswerFolder
from trtkit.runtime.tasks.answers import Embedding

if TYPE_CHECKING:
    from pathlib import Path


def answered(picture: Image.Image, name: str) -> Any:
    vector = cast("Any", np.ones(3, np.float32))
    return SimpleNamespace(drawn=lambda: picture, name=name, picture=None, answer=Embedding(vector))


@pytest.mark.parametrize("name", ["a.jpg", "a.png", "a.webp", "a.gif", "page"])
def test_a_picture_and_an_array_are_written(name: str, tmp_path: Path) -> None:
    with AnswerFolder(tmp_path / "out") as folder:
        folder.write(answered(Image.new("RGB", (8, 6)), name))
    file = name if name.endswith(("jpg", "png", "webp")) else f"{name}.png"
    with Image.open(tmp_path / "out" / file) as picture:
        assert picture.size == (8, 6)
    assert np.load(tmp_path / "out" / f"{name}.npy").tolist() == [1.0, 1.0, 1.0]
    assert len(list((tmp_path / "out").iterdir())) == 2


def test_a_picture_that_is_interrupted_leaves_the_old_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Image.new("RGB", (2, 2)).save(tmp_path / "a.png")
    before = (tmp_path / "a.png").read_bytes()
    picture = Image.new("RGB", (8, 6))

    def interrupted(file: Any, _format: str) -> None:
        file.write(b"half")
        raise KeyboardInterrupt

    monkeypatch.setattr(picture, "save", interrupted)
    with pytest.raises(KeyboardInterrupt), AnswerFolder(tmp_path) as folder:
        folder.write(answered(picture, "a.png"))
    assert [path.name for path in tmp_path.iterdir()] == ["a.png"]
    assert (tmp_path / "a.png").read_bytes() == before
