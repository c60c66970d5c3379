"""A fleet for a model with recurrent states."""

from __future__ import annotations

from pathlib import Path

import pytest

from trtkit.deployment.dynamo.fleet import LocalFleet
from trtkit.deployment.dynamo.model_folder import ServableBundle
from trtkit.deployment.dynamo.options import DynamoOptions
from trtkit.errors import DeployError


def test_prefill_workers_are_refused() -> None:
    model = ServableBundle(Path("bundle"), "name", has_chat=True, takes_images=False, has_states=True)
    with pytest.raises(DeployError) as caught:
        LocalFleet([model], DynamoOptions(port=1, prefill_workers=1))
    assert str(caught.value) == (
        "bundle: prefill workers are not supported for models with recurrent states\n"
        "fix: serve without `--prefill-workers`"
    )
