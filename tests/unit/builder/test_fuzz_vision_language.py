"""Damaged configs of vision-language models and image processors end in one of our errors, soon."""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest

from tests.support.fuzz import json_changes, must_end, text_of
from tests.support.tiny_vlm import VLMS, folder_of, picture
from trtkit.builder.vision_language import open_vision
from trtkit.config.load import load_config
from trtkit.errors import GenerationError
from trtkit.inputs.vision_language import ImageForm, ImageReader

if TYPE_CHECKING:
    from pathlib import Path

    from trtkit.config.schema import ModelConfig

CONFIG = (
    "source: {{hf: {}}}\nllm: {{max_batch_size: 1, max_sequence_length: 160, max_prefill_length: 32}}\nvision: {{}}\n"
)


@dataclass(frozen=True)
class Model:
    """A folder of a model, a config that builds it, and what its tower takes of an image."""

    folder: Path
    config: ModelConfig
    form: ImageForm

    def read_image(self) -> None:
        """Prepare an image as generation does."""
        ImageReader(self.form, self.folder).prepare(picture(40, 30))


@pytest.fixture(params=["llava", "smolvlm", "qwen2.5-vl"])
def model(request: pytest.FixtureRequest, tmp_path: Path) -> Model:
    folder = tmp_path / "model"
    shutil.copytree(folder_of(VLMS[request.param]), folder)
    (tmp_path / "m.yaml").write_text(CONFIG.format(folder))
    config = load_config(str(tmp_path / "m.yaml"), ())
    spec = open_vision(config).spec
    pixels = next(iter(spec.inputs.values())).shape[1:]
    form = ImageForm(spec.layout, pixels, spec.tokens_per_image, spec.merge_size, spec.window_size, 100)
    found = Model(folder, config, form)
    found.read_image()
    return found


def test_changed_configs(model: Model) -> None:
    path = model.folder / "config.json"
    for changed in json_changes(json.loads(path.read_text()), 100):
        path.write_text(text_of(changed))
        must_end(lambda: open_vision(model.config), changed)


def test_changed_image_processors(model: Model) -> None:
    path = model.folder / "preprocessor_config.json"
    for changed in json_changes(json.loads(path.read_text()), 80):
        path.write_text(text_of(changed))
        must_end(model.read_image, changed)
        must_end(lambda: open_vision(model.config), changed)


def test_an_image_that_would_fill_the_memory_is_refused(model: Model) -> None:
    path = model.folder / "preprocessor_config.json"
    fields = json.loads(path.read_text())
    key = next(iter(fields["size"]))
    path.write_text(json.dumps({**fields, "size": {**fields["size"], key: 10**9}}))
    most = 2**27 if model.form.layout == "patches" else 2**14
    with pytest.raises(GenerationError) as caught:
        model.read_image()
    assert str(caught.value) == (
        f"{model.folder}: `size.{key}` of the image processor is `1000000000`, at most {most} is taken\n"
        "fix: correct preprocessor_config.json and build the bundle again"
    )
