"""A bundle as a function of arrays takes the shapes that its engine takes, and no others."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from tests import models
from trtkit.errors import ExecutionError, SourceError
from trtkit.runtime.model import open_model

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from trtkit.runtime.model import RuntimeName


@pytest.fixture
def bundle(workspace: Path, trtkit: Callable[..., object]) -> Path:
    models.save(models.classifier(), workspace / "m.onnx")
    (workspace / "m.yaml").write_text("source: {onnx: m.onnx}\nprofiles: [{batch: [1, 2, 4]}]\n")
    trtkit("build", "m.yaml", "--quiet")
    return workspace / "bundles" / "m"


def test_a_batch_that_no_profile_covers_is_refused_by_every_runtime(bundle: Path) -> None:
    runtimes: tuple[RuntimeName, ...] = ("reference", "onnxruntime")
    for runtime in runtimes:
        model = open_model(bundle, runtime)
        assert model(np.zeros((4, 3, 16, 16), np.float32)).shape == (4, 5)
        with pytest.raises(SourceError) as error:
            model(np.zeros((5, 3, 16, 16), np.float32))
        assert str(error.value) == (
            "inputs: dimension 0 of `images` is 5; the profile allows 1 to 4\n"
            "fix: give other inputs, or widen the profile and build again"
        )


def test_a_language_model_is_no_function_of_arrays(tiny_bundle: Path) -> None:
    with pytest.raises(ExecutionError, match="language model, which takes prompts"):
        open_model(tiny_bundle)
