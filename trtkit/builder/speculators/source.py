"""Open a head's folder: config.json and safetensors, in the format of its kind."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trtkit.builder.speculators.eagle3 import open_eagle3
from trtkit.builder.speculators.gemma4_assistant import open_assistant
from trtkit.builder.speculators.medusa import open_medusa
from trtkit.builder.speculators.opened import HeadFolder
from trtkit.errors import reader
from trtkit.models.speculators.eagle3 import EAGLE3
from trtkit.models.speculators.gemma4_assistant import GEMMA4_ASSISTANT
from trtkit.models.speculators.medusa import MEDUSA
from trtkit.models.speculators.registry import kind_of
from trtkit.sources.attached_folders import speculator_config
from trtkit.sources.safetensors_file import read_folder, read_json

if TYPE_CHECKING:
    from pathlib import Path

    from trtkit.builder.speculators.opened import OpenedSpeculator
    from trtkit.models.spec import DecoderSpec

_OPEN = {EAGLE3: open_eagle3, GEMMA4_ASSISTANT: open_assistant, MEDUSA: open_medusa}


@reader
def folder_kind(folder: Path) -> str:
    """Return the kind of a head. Raises SourceError for a folder that is missing, holds pickles or is not a head's."""
    path = speculator_config(folder)
    return kind_of(read_json(path), str(path))


@reader
def open_speculator(folder: Path, target: DecoderSpec) -> OpenedSpeculator:
    """Open a head for the model `target`.

    Raises what `folder_kind` does, ProblemsError for weights that are missing, have another shape or are unknown, and
    for a head that was made for another model.
    """
    path = speculator_config(folder)
    fields = read_json(path)
    opened = HeadFolder(str(folder), str(path), fields, read_folder(folder)[0])
    return _OPEN[kind_of(fields, str(path))](opened, target)
