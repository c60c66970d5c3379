"""Every field of a text encoder's config is read, refused, or without effect on the outputs of transformers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
import transformers

from tests.selection import slow_unless
from tests.support.config_fields import REFUSALS, changed_configs
from tests.support.hybrids import Case, model_of
from tests.support.text_encoders import CASES, has_new_blocks_or_head
from trtkit.errors import TrtkitError
from trtkit.models.hybrids.registry import hybrid_spec

if TYPE_CHECKING:
    from collections.abc import Mapping

IDS = torch.arange(2, 26).reshape(2, 12)
MASK = (torch.arange(12) < torch.tensor([[12], [7]])).long()


def outputs_of(case: Case, config: dict[str, Any], weights: Mapping[str, Any]) -> torch.Tensor | None:
    """Return transformers' first output at the tokens that the mask shows; None for a config that it does not take."""
    try:
        architecture = getattr(transformers, case.architecture)
        model = architecture(transformers.AutoConfig.for_model(**config)).eval()
        model.set_attn_implementation("eager")
        model.load_state_dict(weights)
        with torch.inference_mode():
            answer = getattr(model(input_ids=IDS, attention_mask=MASK), case.outputs[-1])
    except REFUSALS:
        return None
    return answer[MASK.bool()] if answer.shape[:2] == MASK.shape else answer


@pytest.mark.parametrize(
    "case", slow_unless(has_new_blocks_or_head, [case for case in CASES if not case.variant]), ids=str
)
def test_every_field_is_read_refused_or_without_effect(case: Case) -> None:
    model = model_of(case)
    config = {**model.config.to_diff_dict(), "architectures": [case.architecture], "model_type": case.model_type}
    base, same = hybrid_spec(config), outputs_of(case, config, model.state_dict())
    assert same is not None
    leaks = []
    for name, change in changed_configs(model.config.to_dict()):
        try:
            if hybrid_spec({**config, **change}) != base:
                continue
        except TrtkitError:
            continue
        other = outputs_of(case, {**config, **change}, model.state_dict())
        if other is not None and not torch.allclose(other, same, atol=1e-5):
            leaks.append(f"{name}: {change}")
    assert not leaks
