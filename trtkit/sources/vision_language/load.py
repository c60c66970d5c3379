"""A vision-language model's whole config, and its vision tower's weights from the checkpoint."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from trtkit.errors import SourceError
from trtkit.sources.checkpoint import Checkpoint, check_finite
from trtkit.sources.huggingface.folder import open_config
from trtkit.sources.safetensors_file import read_folder

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    import torch

# Prefixes of a tower's names in older checkpoints, by today's name without `model.`.
_EARLIER = {"vision_tower.": "vision_tower.vision_model."}


def whole_config(folder: Path) -> dict[str, Any]:
    """Return the folder's config with every field of its parts, including defaults, as read by transformers."""
    fields: dict[str, Any] = open_config(folder).to_dict()
    return fields


def load_weights(module: torch.nn.Module, folder: Path) -> None:
    """Load a tower's weights in fp32. Raises SourceError for weights that are missing or of another shape."""
    import numpy as np
    import torch

    arrays, _ = read_folder(folder)
    checkpoint = Checkpoint(arrays)
    names = {name: _stored_name(name, checkpoint) for name in module.state_dict()}
    missing = [name for name, stored in names.items() if stored is None]
    if missing:
        listed = ", ".join(f"`{name}`" for name in missing[:3])
        what = f"{len(missing)} weights of the vision tower are missing, such as {listed}"
        raise SourceError(what, str(folder), "download the model's *.safetensors as a whole")
    weights = {name: checkpoint[stored] for name, stored in names.items() if stored is not None}
    check_finite(weights, str(folder))
    state = {name: torch.from_numpy(np.array(array, dtype=np.float32)) for name, array in weights.items()}
    try:
        module.load_state_dict(state, assign=True)
    except RuntimeError as error:
        detail = "; ".join(line.strip() for line in str(error).splitlines()[1:4])
        raise SourceError(f"weights do not fit the vision tower: {detail}", str(folder)) from None


def _stored_name(name: str, checkpoint: Mapping[str, Any]) -> str | None:
    """Return a weight's name in a checkpoint, None if the checkpoint lacks it."""
    earlier = [name.replace(new, old, 1) for new, old in _EARLIER.items() if name.startswith(new)]
    candidates = [prefix + suffix for suffix in (name, *earlier) for prefix in ("model.", "")]
    return next((candidate for candidate in candidates if candidate in checkpoint), None)
