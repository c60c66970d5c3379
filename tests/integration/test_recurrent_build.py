"""Engine sizes for models whose recurrent layers limit the new tokens per call."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
import yaml

from tests.support.engine_decoders import config_of
from tests.support.generation import case_of
from trtkit.builder.decoders import open_decoder
from trtkit.builder.starter import starter_config
from trtkit.config.load import find_model_config
from trtkit.errors import ConfigError
from trtkit.resolve import resolve

if TYPE_CHECKING:
    from pathlib import Path

CASE = case_of("qwen3_5_text")
LONG = replace(CASE, config={**CASE.config, "max_position_embeddings": 256})


def test_more_new_tokens_than_recurrent_layers_take_are_refused(tmp_path: Path) -> None:
    config = config_of(LONG, tmp_path, max_sequence_length=512, max_prefill_length=65)
    with pytest.raises(ConfigError) as caught:
        open_decoder(resolve(config))
    text = str(caught.value)
    assert "llm.max_sequence_length: 512 is above the model's `max_position_embeddings`, 256" in text
    assert (
        "llm.max_prefill_length: 65 is above 64, the most new tokens that recurrent layers take at once\n"
        "    fix: lower it to 64 or less"
    ) in text
    open_decoder(resolve(config_of(LONG, tmp_path, max_sequence_length=256, max_prefill_length=64)))


def test_a_bare_folder_has_a_size_that_the_model_takes(tmp_path: Path) -> None:
    config_of(LONG, tmp_path)
    model = resolve(find_model_config(str(tmp_path / "model")))
    assert model.config.llm is not None
    assert (model.config.llm.max_sequence_length, model.config.llm.max_prefill_length) == (256, 64)
    assert open_decoder(model).spec.most_new_tokens == 64
    with pytest.raises(ConfigError, match="512 is above 64"):
        open_decoder(resolve(find_model_config(str(tmp_path / "model"), ["llm.max_prefill_length=512"])))


def test_a_first_config_has_a_size_that_the_model_takes(tmp_path: Path) -> None:
    config_of(LONG, tmp_path)
    sizes = yaml.safe_load(starter_config(str(tmp_path / "model"), tmp_path))["llm"]
    assert sizes == {"max_batch_size": 8, "max_sequence_length": 256, "max_prefill_length": 64}
