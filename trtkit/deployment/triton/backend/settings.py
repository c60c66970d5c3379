"""The settings that a deployment wrote next to a model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping


def version_folder(args: Mapping[str, str]) -> Path:
    """Return the folder of the version that Triton loads. args: what `initialize` gets."""
    return Path(args["model_repository"]) / args["model_version"]


def read_settings(args: Mapping[str, str]) -> dict[str, Any]:
    """Return the version's settings.json."""
    settings: dict[str, Any] = json.loads((version_folder(args) / "settings.json").read_text(encoding="utf-8"))
    return settings
