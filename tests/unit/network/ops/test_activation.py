from __future__ import annotations

import pytest
from transformers.activations import ACT2FN

from tests.unit.network.ops.evaluate import assert_close, evaluate, random
from trtkit.errors import NetworkError
from trtkit.network.ops.activation import ACTIVATIONS, activation


@pytest.mark.parametrize("name", sorted(ACTIVATIONS))
@pytest.mark.parametrize("dtype", ["fp32", "fp16"])
def test_activations_match_transformers(name: str, dtype: str) -> None:
    x = random(3, 5, 33, dtype=dtype) * 3
    assert_close(evaluate(lambda t: activation(t, name), x), ACT2FN[name](x.double()), dtype)


def test_an_unknown_activation_is_named() -> None:
    with pytest.raises(NetworkError, match=r"unknown activation `xielu`\nfix: known: gelu, "):
        evaluate(lambda t: activation(t, "xielu"), random(1, 1, 4))
