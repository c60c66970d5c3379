from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch
from torch.testing import assert_close


def test_int8_quantization_rounds_half_to_even_and_saturates(net: Any) -> None:
    x = torch.tensor([0.25, 0.75, 1.25, -0.25, 1000.0, -1000.0])
    layer = net.network.add_quantize(net.given(x), net.constant(np.float32(0.5)), net.trt.int8)
    assert net.run(layer.get_output(0)).tolist() == [0, 2, 2, 0, 127, -128]


def test_fp8_quantization_saturates_at_448_and_rounds_to_e4m3(net: Any, random: Any) -> None:
    x = torch.cat((random(50) * 10, torch.tensor([1e4, -1e4])))
    quantized = net.network.add_quantize(net.given(x), net.constant(np.float32(0.1)), net.trt.fp8).get_output(0)
    layer = net.network.add_dequantize(quantized, net.constant(np.float32(0.1)), net.trt.float32)
    want = np.clip(x.numpy() / np.float32(0.1), -448, 448).astype(ml_dtypes.float8_e4m3fn).astype(np.float32)
    assert_close(net.run(layer.get_output(0)), torch.from_numpy(want * np.float32(0.1)))


def test_fp4_quantization_rounds_to_e2m1(net: Any) -> None:
    x = torch.linspace(-8, 8, 129)
    layer = net.network.add_quantize(net.given(x), net.constant(np.float32(1)), net.trt.fp4)
    want = np.clip(x.numpy(), -6, 6).astype(ml_dtypes.float4_e2m1fn).astype(np.float32)
    assert_close(net.run(layer.get_output(0)).float(), torch.from_numpy(want))


def test_a_scale_per_channel_lies_along_its_axis(net: Any, random: Any) -> None:
    x, scale = random(3, 4, 5), torch.tensor([0.1, 0.2, 0.3, 0.4])
    layer = net.network.add_quantize(net.given(x), net.constant(scale.numpy()), net.trt.int8)
    layer.axis = 1
    want = torch.round(x / scale.reshape(4, 1)).clamp(-128, 127).to(torch.int8)
    assert torch.equal(net.run(layer.get_output(0)), want)


@pytest.mark.parametrize("blocks", [(2, 1), (4, 3)])
def test_int4_weights_are_read_from_the_network_and_scaled_by_block(
    net: Any, random: Any, blocks: tuple[int, int]
) -> None:
    """The API hands out no pointer to int4 data; two values share a byte, low nibble first."""
    values = torch.randint(-8, 8, (8, 6), generator=torch.Generator().manual_seed(0), dtype=torch.int8)
    flat = values.numpy().reshape(-1).astype(np.uint8)
    packed = (flat[::2] & 15) | (flat[1::2] << 4)
    scale = random(8 // blocks[0], 6 // blocks[1]).abs() + 0.1
    weights = net.opaque(packed, "INT4", (8, 6))
    layer = net.network.add_dequantize(weights, net.constant(scale.numpy()), net.trt.float32)
    want = values * scale.repeat_interleave(blocks[0], 0).repeat_interleave(blocks[1], 1)
    assert_close(net.run(layer.get_output(0)), want)


def test_bf16_weights_are_read_without_a_copy(net: Any, random: Any) -> None:
    values = random(3, 4, dtype=torch.bfloat16)
    raw = values.view(torch.int16).numpy()
    tensor = net.opaque(raw, "BF16", (3, 4))
    executor = net.executor(net.network.add_identity(tensor).get_output(0))
    (got,) = executor.run({}).values()
    assert torch.equal(got, values)
    assert got.data_ptr() == raw.ctypes.data


def test_the_side_table_comes_before_what_the_network_holds(net: Any, random: Any) -> None:
    values, other = random(2, 2, dtype=torch.bfloat16), random(2, 2, dtype=torch.bfloat16)
    tensor = net.opaque(values.view(torch.int16).numpy(), "BF16", (2, 2))
    net.network.get_layer(0).name = "weight"
    got = net.run(net.network.add_identity(tensor).get_output(0), constants={"weight": other})
    assert torch.equal(got, other)


def test_dequantizing_rounds_once_to_fp16(net: Any) -> None:
    x, scale = np.arange(-128, 128, dtype=np.int8), np.float16(0.3)
    layer = net.network.add_dequantize(net.constant(x), net.constant(scale), net.trt.float16)
    want = (x.astype(np.float64) * np.float64(scale)).astype(np.float16)
    assert torch.equal(net.run(layer.get_output(0)), torch.from_numpy(want))


def test_mxfp8_takes_a_power_of_two_that_fits_each_block(net: Any, random: Any) -> None:
    x = random(2, 64) * torch.tensor([[1.0], [1e4]])
    layer = net.network.add_dynamic_quantize(net.given(x), 1, 32, net.trt.fp8, net.trt.DataType.E8M0)
    data, scales = net.run(layer.get_output(0), layer.get_output(1))
    peak = x.abs().reshape(2, 2, 32).amax(2)
    want = torch.exp2(torch.ceil(torch.log2(peak / 448)))
    assert_close(scales.float(), want)
    assert_close(data.float() * want.repeat_interleave(32, 1), x, rtol=2**-4, atol=float(peak.max()) * 2**-18)


def test_nvfp4_quantizes_scales_by_the_second_level(net: Any, random: Any) -> None:
    x, outer = random(2, 32), 0.01
    layer = net.network.add_dynamic_quantize(net.given(x), 1, 16, net.trt.fp4, net.trt.fp8)
    layer.set_input(1, net.constant(np.float32(outer)))
    data, scales = net.run(layer.get_output(0), layer.get_output(1))
    peak = x.abs().reshape(2, 2, 16).amax(2)
    want = (peak / 6 / outer).numpy().astype(ml_dtypes.float8_e4m3fn).astype(np.float32)
    assert_close(scales.float(), torch.from_numpy(want))
    step = torch.from_numpy(want).repeat_interleave(16, 1) * outer
    codes = (x / step).numpy().clip(-6, 6).astype(ml_dtypes.float4_e2m1fn).astype(np.float32)
    assert_close(data.float(), torch.from_numpy(codes))
