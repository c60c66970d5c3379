"""A fleet for a model with recurrent states."""

from __future__ import annotations

from pathlib import Path

import pytest

from trtkit.deployment.dynamo.fleet import Fleet
from trtkit.deployment.dynamo.fleet_options import FleetOptions
from trtkit.deployment.dynamo.model_folder import ServedModel
from trtkit.errors import DeployError


def test_prefill_workers_are_refused() -> None:
    model = ServedModel(Path("bundle"), has_chat=True, takes_images=False, has_states=True)
    with pytest.raises(DeployError) as caught:
        Fleet(model, FleetOptions("name", port=1, prefill_workers=1))
    assert str(caught.value) == (
        "bundle: prefill workers are not supported for models with recurrent states\n"
        "fix: serve without `--prefill-workers`"
    )
