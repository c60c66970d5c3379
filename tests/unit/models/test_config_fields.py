"""Every field of every family's config in transformers is read, refused, or without effect on transformers' logits."""

from __future__ import annotations

import math
from copy import deepcopy
from itertools import chain
from typing import TYPE_CHECKING, Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from tests.families import cases
from tests.support.config_fields import REFUSALS, changed_configs, rewritten_configs
from tests.support.decoder_cases import CASES
from tests.support.decoders import model_of
from trtkit.errors import TrtkitError
from trtkit.models.registry import decoder_spec

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tests.support.decoder_case import Case
    from trtkit.models.spec import DecoderSpec

# Sizes of matrices: a checkpoint that has others is refused by its shapes.
SIZES = {"intermediate_size", "ffn_dim", "num_key_value_heads", "n_positions", "max_position_embeddings"}
INFINITE, SAVED_INFINITE = [0.0, math.inf], [0.0, {"__float__": "Infinity"}]  # as transformers writes it to files
IDS = (torch.arange(48).reshape(1, -1) * 7 + 3) % 61
FIRST = {case.model_type: case for case in reversed(CASES)}


def logits_of(case: Case, config: dict[str, Any], weights: Mapping[str, Any]) -> torch.Tensor | None:
    """Return transformers' logits [1, S, V]; None for a config that it does not take."""
    fields = {name: INFINITE if value == SAVED_INFINITE else value for name, value in config.items()}
    try:
        hf = AutoModelForCausalLM.from_config(
            AutoConfig.for_model(**fields), attn_implementation=case.attention, experts_implementation="eager"
        ).eval()
        hf.load_state_dict(weights)
        with torch.inference_mode():
            return hf(IDS).logits
    except REFUSALS:
        return None


@pytest.mark.parametrize("without", ["nothing", "layer_types"])
@pytest.mark.parametrize("model_type", sorted(FIRST))
def test_every_field_is_read_refused_or_without_effect(model_type: str, without: str) -> None:
    model = model_of(FIRST[model_type])
    config, weights = {key: value for key, value in model.config.items() if key != without}, model.hf.state_dict()
    if without != "nothing" and config == model.config:
        pytest.skip("the family has no such field")
    base, same = decoder_spec(config), logits_of(FIRST[model_type], config, weights)
    if same is None and without != "nothing":
        pytest.skip("without it, the layers are others")
    assert same is not None
    leaks = []
    for name, change in changed_configs(model.hf.config.to_dict()):
        if name == without:
            continue
        try:
            if decoder_spec({**config, **change}) != base:
                continue
        except TrtkitError:
            continue
        other = logits_of(FIRST[model_type], {**config, **change}, weights)
        if other is not None and not torch.allclose(other, same, atol=1e-5):
            leaks.append(f"{name}: {change}")
    assert not leaks


def reading(config: Mapping[str, Any]) -> DecoderSpec | str:
    """Return how trtkit reads a config: its spec, or its error."""
    try:
        return decoder_spec(config)
    except TrtkitError as error:
        return str(error)


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(case, id=str(case), marks=[] if case in FIRST.values() else pytest.mark.slow)
        for case in chain.from_iterable(cases().values())
    ],
)
def test_a_config_is_read_like_the_one_that_transformers_completes(case: Case) -> None:
    """Fields that are missing or null, and old rotary fields, mean what they mean to transformers, or are refused."""
    whole = AutoConfig.for_model(case.model_type, **deepcopy(case.config)).to_dict()
    wrong = []
    for change, config in [("as written", {"model_type": case.model_type, **case.config}), *rewritten_configs(whole)]:
        spec = reading(config)
        if isinstance(spec, str) or any(change in (f"without {name}", f"{name} null") for name in SIZES):
            continue
        try:
            completed = AutoConfig.for_model(**deepcopy(config)).to_dict()
        except REFUSALS:
            continue
        other = reading({**completed, "model_type": case.model_type})
        if other != spec:
            wrong.append(f"{change}: {other if isinstance(other, str) else 'another model'}")
    assert not wrong


def test_smollm3_slides_in_layers_without_positions_unless_layer_types_are_listed() -> None:
    config = model_of(FIRST["smollm3"]).config | {"use_sliding_window": True, "sliding_window": 7}
    del config["layer_types"]
    assert [layer.attention.sliding_window for layer in decoder_spec(config).layers] == [None, 7]
    with pytest.raises(TrtkitError, match="`no_rope_layers` has 1 entries for 2 layers"):
        decoder_spec(config | {"no_rope_layers": [1]})
