"""Names of classes: from the file that a config names, or from a Hugging Face folder."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from trtkit.errors import SourceError
from trtkit.sources import package_file
from trtkit.sources.huggingface.preprocessing import folder_labels
from trtkit.sources.safetensors_file import json_object

if TYPE_CHECKING:
    from pathlib import Path

    from trtkit.config.schema import ModelConfig

_LABELS = "give a JSON list of names, or a text file with a name a line, in the order of the classes"


def config_labels(config: ModelConfig) -> tuple[str, ...]:
    """Return the names of a model's classes by `task.labels` or `id2label`; empty if neither names them.

    Raises SourceError if `task.labels` cannot be read.
    """
    task = config.task
    if task is None or task.kind not in {"classification", "detection", "segmentation"}:
        return ()
    if task.labels is not None:
        return tuple(read_labels(package_file.resolve(task.labels, task.requires)))
    if config.source.hf is None:
        return ()
    return folder_labels(json_object(package_file.hf_folder(config.source) / "config.json"))


def read_labels(path: Path) -> list[str]:
    """Return the names of classes in a file: a JSON list, or a line each. Raises SourceError where it holds none."""
    try:
        text = path.read_text(encoding="utf-8")
        labels = json.loads(text) if path.suffix == ".json" else text.splitlines()
    except (OSError, ValueError) as error:
        raise SourceError(f"cannot be read: {error}", str(path), _LABELS) from None
    if not isinstance(labels, list) or not labels or not all(isinstance(name, str) for name in labels):
        raise SourceError("holds no list of names", str(path), _LABELS)
    return labels
