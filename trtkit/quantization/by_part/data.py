"""The data that one part of a hybrid is measured on, out of data for the whole model."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from trtkit.inputs.samples import read_npz, sample_files
from trtkit.quantization_methods import needs_data
from trtkit.sources import package_file

if TYPE_CHECKING:
    from collections.abc import Collection
    from pathlib import Path

    from trtkit.quantization.by_part.choice import PartChoice


def with_own_arrays(
    choice: PartChoice, input_names: Collection[str], whole: Collection[str], folder: Path
) -> PartChoice:
    """Return the choice with .npz files that hold the part's inputs alone, in `folder`, where its data has others.

    own, whole: names of the part's inputs and of the model's. Raises SourceError for files that cannot be read.
    """
    options = choice.options
    if not needs_data(options.method) or options.calibration.data is None:
        return choice
    files = sample_files(package_file.resolve(options.calibration.data))
    held = {path: read_npz(path) for path in files if path.suffix.lower() == ".npz"}
    others = set(whole) - set(input_names)
    if not any(others & arrays.keys() for arrays in held.values()):
        return choice
    own_folder = folder / "calibration"
    own_folder.mkdir()
    for path, arrays in held.items():
        np.savez(own_folder / path.name, **{name: array for name, array in arrays.items() if name not in others})  # type: ignore[arg-type]
    calibration = options.calibration.model_copy(update={"data": str(own_folder)})
    return replace(choice, options=options.model_copy(update={"calibration": calibration}))
