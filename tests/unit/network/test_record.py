"""A network's record as JSON and back, and what of it no reader guesses."""

from __future__ import annotations

import json

import pytest

from trtkit.network.record import NetworkRecord, TensorRecord, join_records, record_from_json
from trtkit.quantized_model import LayerForm, QuantizedModel

TENSOR = TensorRecord("x", "fp16", (1, 4))
PLAIN = NetworkRecord((TENSOR,), (TENSOR,), {"x": (1, 4)}, ())
FORMS = {"layers.0.mlp.up": LayerForm("int4", 32, has_offsets=True), "layers.0.mlp.down": LayerForm("fp8", None, "fp8")}


@pytest.mark.parametrize("record", [PLAIN, PLAIN.with_quantization(FORMS, "int8"), PLAIN.with_quantization({}, "fp8")])
def test_quantization_is_kept_as_the_writer_recorded_it(record: NetworkRecord) -> None:
    assert record_from_json(json.loads(json.dumps(record.to_json()))) == record


def test_nothing_quantized_is_none() -> None:
    assert PLAIN.with_quantization({}).quantization is None


def test_a_record_that_says_nothing_of_quantization_is_refused() -> None:
    data = PLAIN.to_json()
    del data["quantization"]
    with pytest.raises(TypeError, match="`quantization` is missing"):
        record_from_json(data)


def test_networks_of_several_stages_have_the_quantized_layers_of_all() -> None:
    first, second = ({name: form} for name, form in FORMS.items())
    records = [PLAIN.with_quantization(first), PLAIN, PLAIN.with_quantization(second)]
    assert join_records(records, ["x"], ["x"]).quantization == QuantizedModel(FORMS)
