"""Which types a choice of methods needs, and which target the command names for them."""

from __future__ import annotations

from trtkit.config.quantize import QuantizeOptions


def test_types_are_those_of_all_methods_and_caches() -> None:
    options = QuantizeOptions(method="int4_awq", layers={"layers.0.*": "mxfp8", "layers.1.*": "none"}, kv_cache="int8")
    assert options.types() == {"int4", "fp8", "int8"}
    assert QuantizeOptions(method="fp8").types("int8_wo") == {"fp8", "int8"}
