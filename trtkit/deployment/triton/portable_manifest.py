"""A bundle's manifest as it travels to servers: without the paths of the machine that built it."""

from __future__ import annotations

import json
from pathlib import PurePath
from typing import TYPE_CHECKING, Any

from trtkit.backends.gpu import list_gpus
from trtkit.files import MANIFEST, read_text

if TYPE_CHECKING:
    from trtkit.bundle.bundle import Bundle
    from trtkit.bundle.manifest import Manifest


def reads_source(manifest: Manifest) -> bool:
    """Whether a server here reads weights from the source: without a GPU, if the bundle does not hold them all."""
    return manifest.needs_source and not list_gpus()


def portable_manifest(bundle: Bundle) -> str:
    """Return manifest.json with names of files in place of absolute paths, but for a source that is read from there.

    A layer's name may begin with `/` too: only what the config and the sources name is changed.
    """
    data = json.loads(read_text(bundle.path / MANIFEST))
    source, speculator = data["config"]["source"], (data["config"]["llm"] or {}).get("speculator")
    data["config"] = {key: value if key == "keep_fp32" else _portable(value) for key, value in data["config"].items()}
    if not reads_source(bundle.manifest):
        data["sources"] = _portable(data["sources"])
    else:
        data["config"]["source"] = source
        if data["config"]["llm"] is not None:
            data["config"]["llm"]["speculator"] = speculator
    return json.dumps(data, indent=1) + "\n"


def _portable(value: Any) -> Any:
    """Return a value with absolute paths cut to their last names."""
    if isinstance(value, dict):
        return {key: _portable(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_portable(item) for item in value]
    is_path = isinstance(value, str) and PurePath(value).is_absolute()
    return PurePath(value).name if is_path else value
