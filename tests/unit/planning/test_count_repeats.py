"""Layers that come again and again are counted a few times; the counts are those of the whole network, exactly."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from transformers import AutoConfig

from tests.selection import slow_unless
from tests.support.decoder_cases import CASES
from tests.unit.planning.planned import TINY_LLAMA, counted
from trtkit.models.registry import decoder_spec
from trtkit.planning import count_decoder
from trtkit.quantized_model import LayerForm, QuantizedModel

if TYPE_CHECKING:
    from tests.support.decoder_case import Case
    from trtkit.network.decoder_options import DecoderOptions

LAYERS = 15
SIZES = ("num_hidden_layers", "n_layer", "n_layers", "num_layers")
UNLIKE = {"gpt_neo", "nemotron_h", "falcon_h1", "nemotron-nas"}  # list their layers in ways of their own


def deepened(case: Case) -> dict[str, Any]:
    """Return a case's config with 15 layers: lists of one item for each layer go on from their beginning."""
    config = deepcopy(case.config)
    name = next(name for name in SIZES if name in config)
    for key, value in config.items():
        if isinstance(value, list | tuple) and len(value) == config[name]:
            config[key] = (list(value) * LAYERS)[:LAYERS]
    config[name] = LAYERS
    return {**AutoConfig.for_model(case.model_type, **config).to_dict(), "model_type": case.model_type}


def assert_counted_as_whole(monkeypatch: pytest.MonkeyPatch, fields: dict[str, Any], **options: Any) -> None:
    counts = counted(fields, **options)
    monkeypatch.setattr(count_decoder, "_FEW", LAYERS)
    assert counted(fields, **options) == counts


@pytest.mark.parametrize(
    "case",
    slow_unless(
        lambda case: case.name == "gemma3",
        [case for case in CASES if case.model_type not in UNLIKE],
    ),
    ids=lambda case: case.name,
)
def test_counts_are_those_of_the_whole_network(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    assert_counted_as_whole(monkeypatch, deepened(case))


def test_layers_in_other_precisions_or_with_adapters_are_not_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    fields = {**TINY_LLAMA, "num_hidden_layers": LAYERS}
    form = LayerForm("int8")
    quantized = QuantizedModel({f"layers.{layer}.mlp.up": form for layer in range(LAYERS) if layer != 3})
    repeats = count_decoder._repeats(decoder_spec(fields), quantized)
    assert repeats == (4, 1, LAYERS - 4)
    assert_counted_as_whole(monkeypatch, fields, quantized=quantized)
    assert_counted_as_whole(monkeypatch, fields, lora={"max_rank_sum": 8})


def test_layers_after_which_images_are_added_are_not_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    written = count_decoder.network_options

    def of_images(*model: Any) -> DecoderOptions:
        return replace(written(*model), has_embeds_input=True, deepstack=3)

    monkeypatch.setattr(count_decoder, "network_options", of_images)
    fields = {**TINY_LLAMA, "num_hidden_layers": LAYERS}
    assert count_decoder._repeats(decoder_spec(fields), QuantizedModel({}), 3) == (3, 1, LAYERS - 3)
    assert_counted_as_whole(monkeypatch, fields)


def test_results_of_all_layers_that_are_alive_at_once_are_counted_as_a_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []
    network = count_decoder._network

    def counting(backend: Any, spec: Any, *rest: Any) -> Any:
        sizes.append(len(spec.layers))
        return network(backend, spec, *rest)

    monkeypatch.setattr(count_decoder, "_network", counting)
    (case,) = (case for case in CASES if case.name == "mamba2")
    counted(deepened(case))
    assert sizes == [2, 2, 3, 3, LAYERS, LAYERS]
