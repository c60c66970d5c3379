"""Every field of T5's configs is read, refused, or without effect on transformers' logits."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForSeq2SeqLM

from tests.support.config_fields import REFUSALS, changed_configs
from tests.support.tiny_t5 import CONFIG
from trtkit.errors import TrtkitError
from trtkit.models.registry import decoder_spec

if TYPE_CHECKING:
    from collections.abc import Mapping

# Of the encoder, which transformers itself makes for the stage.
OF_ENCODER = {"num_layers"}
SOURCE = (torch.arange(23).reshape(1, -1) * 7 + 3) % 200
IDS = (torch.arange(30).reshape(1, -1) * 11) % 200


def logits_of(config: Mapping[str, Any], weights: Mapping[str, Any] | None = None) -> torch.Tensor | None:
    """Return transformers' logits [1, S, V], with `weights` or seeded ones; None for a config that it does not take."""
    torch.manual_seed(0)
    try:
        hf = AutoModelForSeq2SeqLM.from_config(AutoConfig.for_model(**config), attn_implementation="eager").eval()
        if weights is not None:
            hf.load_state_dict(weights)
        with torch.inference_mode():
            return hf(input_ids=SOURCE, decoder_input_ids=IDS, use_cache=False).logits
    except REFUSALS:
        return None


@pytest.mark.parametrize("model_type", ["t5", "mt5", "umt5"])
def test_every_field_is_read_refused_or_without_effect(model_type: str) -> None:
    torch.manual_seed(0)
    config = AutoConfig.for_model(**{**CONFIG, "model_type": model_type}).to_dict()
    weights = AutoModelForSeq2SeqLM.from_config(AutoConfig.for_model(**config)).state_dict()
    base, same = decoder_spec(config), logits_of(config, weights)
    assert same is not None
    leaks = []
    for name, change in changed_configs(config):
        try:
            if name in OF_ENCODER or decoder_spec({**config, **change}) != base:
                continue
        except TrtkitError:
            continue
        other = logits_of({**config, **change}, weights)
        if other is not None and not torch.allclose(other, same, atol=1e-5):
            leaks.append(f"{name}: {change}")
    assert not leaks


@pytest.mark.parametrize("model_type", ["t5", "mt5", "umt5"])
def test_a_field_that_is_left_out_has_the_default_of_transformers(model_type: str) -> None:
    config = {**CONFIG, "model_type": model_type}
    wrong = []
    for name in config.keys() - {"model_type", "vocab_size", "d_model", "d_ff"}:
        rest = {key: value for key, value in config.items() if key != name}
        try:
            spec = decoder_spec(rest)
        except TrtkitError:
            continue
        if decoder_spec({**AutoConfig.for_model(**rest).to_dict(), "model_type": model_type}) != spec:
            wrong.append(name)
    assert not wrong


def test_an_untied_head_says_whether_logits_are_scaled() -> None:
    """transformers 5.23: T5's are if its head is tied, mT5's never, UMT5's always."""
    scale = CONFIG["d_model"] ** -0.5
    for model_type, wanted in (("t5", (scale, 1.0)), ("mt5", (1.0, 1.0)), ("umt5", (scale, scale))):
        specs = (
            decoder_spec({**CONFIG, "model_type": model_type, "tie_word_embeddings": tied}) for tied in (True, False)
        )
        assert tuple(spec.head.logit_scale for spec in specs) == wanted
