"""Folders read by transformers alone, with an error for each weight that it would initialize randomly or ignore."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from trtkit.errors import SourceError
from trtkit.sources.huggingface import auto_classes

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    import torch

_SHOWN = 3


def open_config(folder: Path | str) -> Any:
    """Return transformers' config object. Raises SourceError."""
    import transformers

    auto_classes.register()
    try:
        return transformers.AutoConfig.from_pretrained(folder, local_files_only=True)
    except Exception as error:  # whatever a field of a wrong type makes a family's config raise
        what = " ".join(str(error).split())
        raise SourceError(f"transformers cannot read the config: {what}", str(folder)) from None


def load_folder(auto: Any, folder: Path | str, *, unused: Sequence[str] = (), **options: Any) -> Any:
    """Return the model in `folder`, loaded by transformers alone, in fp32 on the CPU, ready to run.

    auto: a class with `from_pretrained`. unused: regular expressions of weights that it may ignore. Raises SourceError
    if it cannot be loaded, and for weights that are missing (which transformers initializes randomly) or that the model
    does not have.
    """
    options = {"local_files_only": True, "use_safetensors": True, **options}
    return load_weights(auto, folder, str(folder), unused=unused, **options)


def load_weights(
    auto: Any, folder: Path | str | None, where: str, *, unused: Sequence[str] = (), **options: Any
) -> Any:
    """Return a model by `from_pretrained`, from a folder or a `state_dict`; see `load_folder`."""
    import transformers

    try:
        model, report = auto.from_pretrained(folder, output_loading_info=True, **{"dtype": "float32", **options})
    except (OSError, ValueError, RuntimeError) as error:
        raise SourceError(f"transformers cannot load the model: {error}", where) from error
    for kind, names in (("are missing", report["missing_keys"]), ("are not the model's", report["unexpected_keys"])):
        weights = sorted(name for name in names if not re.search("|".join((r"num_batches_tracked$", *unused)), name))
        if weights:
            raise SourceError(f"{len(weights)} weights {kind} by transformers' reading: {_listed(weights)}", where)
    if model.can_generate():
        model.generation_config = transformers.GenerationConfig()  # not the folder's penalties and sampling
    if any(_is_stacked_oddly(weight) for weight in model.parameters()):
        model.set_experts_implementation("eager")
    return model.eval()


def _is_stacked_oddly(weight: torch.Tensor) -> bool:
    """Whether a weight may be of experts that torch cannot multiply at once, as rows are not multiples of 16 bytes."""
    return weight.dim() == 3 and any(size * weight.element_size() % 16 for size in weight.shape[1:])


def _listed(names: Iterable[str]) -> str:
    listed = list(names)
    return ", ".join(f"`{name}`" for name in listed[:_SHOWN]) + (", ..." if len(listed) > _SHOWN else "")
