from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

from tests.support import models
from tests.unit.network.onnx.rewrites.ways import Arrays, assert_all_agree
from trtkit.errors import UnsupportedOperatorsError
from trtkit.network.onnx.rewrites import rewrite
from trtkit.network.onnx.rewrites.rule import MICROSOFT

RANDOM = np.random.default_rng(0)


def _normal(*shape: int) -> np.ndarray[Any, Any]:
    return RANDOM.standard_normal(shape).astype(np.float32)


def _nbits(
    size: tuple[int, int], bits: int, block: int, zero_points: str, extra: dict[str, Any] | None = None
) -> onnx.ModelProto:
    """x [n, K] -> y [n, N], size = N, K."""
    columns, rows = size
    blocks = -(-rows // block)
    constants = [
        models.constant("b", RANDOM.integers(0, 256, (columns, blocks, block * bits // 8)), "uint8"),
        models.constant("s", RANDOM.random(columns * blocks) * 0.1),
    ]
    names = ["x", "b", "s"]
    if zero_points == "packed":
        packed = RANDOM.integers(0, 256, columns * -(-blocks * bits // 8))
        constants.append(models.constant("z", packed, "uint8"))
    if zero_points == "float":
        constants.append(models.constant("z", RANDOM.random(columns * blocks) * 15))
    names += ["z"] if zero_points else []
    given = {"K": rows, "N": columns, "bits": bits, "block_size": block} | (extra or {})
    node = helper.make_node("MatMulNBits", names, ["y"], "n", domain=MICROSOFT, **given)
    inputs, outputs = [models.tensor("x", "n", rows)], [models.tensor("y", "n", columns)]
    return models.model([node], inputs, outputs, constants, domains=[MICROSOFT], opset=17)


@pytest.mark.parametrize("zero_points", ["", "packed", "float"])
@pytest.mark.parametrize(("rows", "bits", "block"), [(64, 4, 16), (72, 4, 32), (64, 8, 32)])
def test_matmul_nbits(rows: int, bits: int, block: int, zero_points: str) -> None:
    if zero_points == "float" and bits == 8:
        pytest.skip("ONNX Runtime has no float zero points of 8 bits")
    model = _nbits((6, rows), bits, block, zero_points)
    said = assert_all_agree(model, {"x": _normal(3, rows)}, atol=2e-4, rtol=1e-4)
    assert said == "1 com.microsoft::MatMulNBits"


@pytest.mark.parametrize(
    ("attributes", "said"),
    [
        ({"bits": 2}, "com.microsoft::MatMulNBits `n`: attribute `bits` is `2`, allowed: `4`, `8`"),
        (
            {"turn": 1},
            "com.microsoft::MatMulNBits `n`: unknown attribute `turn` = `1`, "
            "known: K, N, accuracy_level, bits, block_size, weight_prepacked",
        ),
    ],
)
def test_weights_that_cannot_be_taken(attributes: dict[str, Any], said: str) -> None:
    with pytest.raises(UnsupportedOperatorsError) as refused:
        rewrite(_nbits((6, 64), 4, 16, "", attributes))
    assert str(refused.value).splitlines()[1].strip() == said


_B, _N, _K, _H = 2, 4, 2, 16


def _attention(tokens: int, past: int, *, packed: bool = False, shared: int = 0, **attributes: Any) -> onnx.ModelProto:
    """Inputs q, k, v [B, S, ...], past_k and past_v [B, K, P, H], lengths [B], total."""
    names = ["q", *(["", ""] if packed else ["k", "v"]), "past_k", "past_v", "lengths", "total"]
    constants = []
    if attributes.get("do_rotary"):
        angles = np.arange(64)[:, None] / 10000 ** (np.arange(_H // 2) / (_H // 2))
        constants = [models.constant("cos", np.cos(angles)), models.constant("sin", np.sin(angles))]
        names += ["cos", "sin"]
    given = {"num_heads": _N, "kv_num_heads": _K} | attributes
    node = helper.make_node("GroupQueryAttention", names, ["y", "new_k", "new_v"], "n", domain=MICROSOFT, **given)
    width = (_N + 2 * _K if packed else _N) * _H
    inputs = [models.tensor("q", _B, tokens, width)]
    if not packed:
        inputs += [models.tensor(name, _B, tokens, _K * _H) for name in ("k", "v")]
    inputs += [models.tensor(name, _B, _K, shared or past, _H) for name in ("past_k", "past_v")]
    inputs += [models.tensor("lengths", _B, dtype="INT32"), models.tensor("total", 1, dtype="INT32")]
    outputs = [models.tensor("y", _B, tokens, _N * _H)]
    outputs += [models.tensor(name, _B, _K, shared or past + tokens, _H) for name in ("new_k", "new_v")]
    return models.model([node], inputs, outputs, constants, domains=[MICROSOFT], opset=18)


def _feeds(model: onnx.ModelProto, total: int) -> Arrays:
    shapes = {value.name: [dim.dim_value for dim in value.type.tensor_type.shape.dim] for value in model.graph.input}
    feeds = {name: _normal(*shape) for name, shape in shapes.items() if name not in {"lengths", "total"}}
    return feeds | {"lengths": np.full(_B, total - 1, np.int32), "total": np.array([total], np.int32)}


@pytest.mark.parametrize(("tokens", "past"), [(5, 0), (1, 7)])
@pytest.mark.parametrize(
    "attributes",
    [
        {},
        {"do_rotary": 1},
        {"do_rotary": 1, "rotary_interleaved": 1, "scale": 0.3},
        {"local_window_size": 3},
        {"softcap": 2.0},
        {"packed": True, "do_rotary": 1},
    ],
    ids=str,
)
def test_group_query_attention(tokens: int, past: int, attributes: dict[str, Any]) -> None:
    model = _attention(tokens, past, **attributes)
    new, said = rewrite(model)
    assert said == "1 com.microsoft::GroupQueryAttention"
    _agree(model, new, _feeds(model, past + tokens))


def test_a_shared_cache_keeps_its_length_and_rows_have_their_own() -> None:
    model = _attention(1, 7, shared=12, do_rotary=1)
    feeds = _feeds(model, 8) | {"lengths": np.array([7, 4], np.int32)}
    for name in ("past_k", "past_v"):  # ONNX Runtime clears what lies behind a row's tokens
        feeds[name][0, :, 7:] = feeds[name][1, :, 4:] = 0
    _agree(model, rewrite(model)[0], feeds)


def _agree(model: onnx.ModelProto, new: onnx.ModelProto, feeds: Arrays) -> None:
    """Compare without `total`, which the rewritten model does not read."""
    from tests.unit.network.onnx.rewrites.ways import in_onnx_runtime, in_tensorrt

    expected = in_onnx_runtime(model, feeds)
    read = {name for node in new.graph.node for name in node.input}
    for value in [value for value in new.graph.input if value.name not in read]:
        new.graph.input.remove(value)
    given = {value.name: feeds[value.name] for value in new.graph.input}
    for found in (in_onnx_runtime(new, given), in_tensorrt(new, given)):
        for have, want in zip(found, expected, strict=True):
            np.testing.assert_allclose(have, want, atol=2e-5, rtol=1e-4)


@pytest.mark.parametrize(
    ("attributes", "said"),
    [
        ({"smooth_softmax": 1}, "attribute `smooth_softmax` is `1`, allowed: `0`, `-1`"),
        ({"qk_output": 1}, "attribute `qk_output` is `1`, allowed: `0`"),
        ({"heads": 1}, "unknown attribute `heads` = `1`, known: "),
    ],
)
def test_attention_that_cannot_be_taken(attributes: dict[str, Any], said: str) -> None:
    with pytest.raises(UnsupportedOperatorsError) as refused:
        rewrite(_attention(1, 7, **attributes))
    assert f"com.microsoft::GroupQueryAttention `n`: {said}" in str(refused.value)


@pytest.mark.parametrize(
    ("op_type", "shapes", "attributes"),
    [
        ("BiasGelu", [(2, 5), (5,)], {}),
        ("Gelu", [(2, 5)], {}),
        ("FastGelu", [(2, 5), (5,)], {}),
        ("QuickGelu", [(2, 5)], {"alpha": 1.5}),
        ("FusedMatMul", [(2, 4, 3), (2, 4, 5)], {"transA": 1, "alpha": 0.5}),
        ("SkipLayerNormalization", [(2, 3, 8), (2, 3, 8), (8,), (8,), (8,)], {"epsilon": 1e-5}),
        ("FusedConv", [(1, 3, 5, 5), (4, 3, 3, 3), (4,)], {"activation": "LeakyRelu", "activation_params": [0.2]}),
        ("FusedConv", [(1, 3, 5, 5), (4, 3, 3, 3)], {"activation": "Clip", "activation_params": [-0.5, 0.5]}),
    ],
)
def test_what_the_optimizer_fuses(op_type: str, shapes: list[tuple[int, ...]], attributes: dict[str, Any]) -> None:
    names = [f"x{place}" for place in range(len(shapes))]
    node = helper.make_node(op_type, names, ["y"], "n", domain=MICROSOFT, **attributes)
    inputs = [models.tensor(name, *shape) for name, shape in zip(names, shapes, strict=True)]
    y = onnx.helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, None)
    model = models.model([node], inputs, [y], domains=[MICROSOFT])
    feeds = {name: _normal(*shape) for name, shape in zip(names, shapes, strict=True)}
    assert_all_agree(model, feeds, atol=1e-5, rtol=1e-4)
