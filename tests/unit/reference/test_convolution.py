from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch.testing import assert_close


def _convolution(net: Any, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> Any:
    array = weight.numpy()
    net.held += [array, bias.numpy()]
    trt = net.trt
    return net.network.add_convolution_nd(
        net.given(x), weight.shape[0], tuple(weight.shape[2:]), trt.Weights(array), trt.Weights(net.held[-1])
    )


@pytest.mark.parametrize("spatial", [(9, 7), (5, 6, 7)])
def test_grouped_dilated_convolution_matches_torch(net: Any, random: Any, spatial: tuple[int, ...]) -> None:
    rank = len(spatial)
    x, weight, bias = random(2, 4, *spatial), random(6, 2, *[3] * rank), random(6)
    layer = _convolution(net, x, weight, bias)
    layer.num_groups, layer.stride_nd, layer.padding_nd = 2, (2,) * rank, (1,) * rank
    layer.dilation_nd = (2, *[1] * (rank - 1))
    convolve = F.conv2d if rank == 2 else F.conv3d
    want = convolve(x, weight, bias, 2, 1, (2, *[1] * (rank - 1)), 2)
    assert_close(net.run(layer.get_output(0)), want)


def test_convolution_pads_each_side_by_its_own_amount(net: Any, random: Any) -> None:
    x, weight, bias = random(1, 3, 8, 8), random(5, 3, 3, 3), random(5)
    layer = _convolution(net, x, weight, bias)
    layer.pre_padding, layer.post_padding = (0, 1), (2, 0)
    want = F.conv2d(F.pad(x, (1, 0, 0, 2)), weight, bias)
    assert_close(net.run(layer.get_output(0)), want)


@pytest.mark.parametrize(("mode", "pad"), [("SAME_UPPER", (0, 1, 0, 1)), ("SAME_LOWER", (1, 0, 1, 0))])
def test_same_padding_puts_the_odd_element_where_its_mode_says(
    net: Any, random: Any, mode: str, pad: tuple[int, ...]
) -> None:
    x, weight, bias = random(1, 2, 8, 8), random(3, 2, 2, 2), random(3)
    layer = _convolution(net, x, weight, bias)
    layer.padding_mode = getattr(net.trt.PaddingMode, mode)
    assert_close(net.run(layer.get_output(0)), F.conv2d(F.pad(x, pad), weight, bias))


def test_rounding_the_output_size_up_lets_the_last_window_hang_over(net: Any, random: Any) -> None:
    x, weight, bias = random(1, 2, 8, 8), random(3, 2, 3, 3), random(3)
    layer = _convolution(net, x, weight, bias)
    layer.stride_nd, layer.padding_mode = (2, 2), net.trt.PaddingMode.EXPLICIT_ROUND_UP
    got = net.run(layer.get_output(0))
    assert tuple(got.shape) == tuple(layer.get_output(0).shape) == (1, 3, 4, 4)
    assert_close(got, F.conv2d(F.pad(x, (0, 1, 0, 1)), weight, bias, 2))


def test_fp16_convolution_sums_in_fp32_and_rounds_once(net: Any, random: Any) -> None:
    x, weight, bias = random(1, 64, 5, 5).half(), random(8, 64, 3, 3).half(), random(8).half()
    layer = _convolution(net, x, weight, bias)
    want = F.conv2d(x.double(), weight.double(), bias.double()).half()
    got = net.run(layer.get_output(0))
    assert got.dtype == torch.float16
    assert_close(got, want, rtol=2**-10, atol=2**-12)


def test_convolution_takes_its_kernel_from_an_input(net: Any, random: Any) -> None:
    x, weight = random(1, 3, 6, 6), random(4, 3, 3, 3)
    layer = net.network.add_convolution_nd(net.given(x), 4, (3, 3), net.trt.Weights())
    layer.set_input(1, net.constant(weight.numpy()))
    assert_close(net.run(layer.get_output(0)), F.conv2d(x, weight))


@pytest.mark.parametrize(("before", "after"), [((0, 0), (0, 0)), ((1, 1), (1, 1)), ((1, 0), (0, 2))])
def test_deconvolution_crops_by_its_padding(net: Any, random: Any, before: Any, after: Any) -> None:
    x, weight, bias = random(2, 4, 5, 6), random(4, 3, 3, 3), random(6)
    kernel, added = weight.numpy(), bias.numpy()
    trt = net.trt
    layer = net.network.add_deconvolution_nd(net.given(x), 6, (3, 3), trt.Weights(kernel), trt.Weights(added))
    layer.num_groups, layer.stride_nd = 2, (2, 2)
    layer.pre_padding, layer.post_padding = before, after
    full = F.conv_transpose2d(x, weight, bias, 2, groups=2)
    want = full[:, :, before[0] : full.shape[2] - after[0], before[1] : full.shape[3] - after[1]]
    assert_close(net.run(layer.get_output(0)), want)


@pytest.mark.parametrize("excludes", [True, False])
def test_average_pooling_divides_by_what_it_counts(net: Any, random: Any, excludes: bool) -> None:
    x = random(1, 2, 7, 7)
    layer = net.network.add_pooling_nd(net.given(x), net.trt.PoolingType.AVERAGE, (3, 3))
    layer.stride_nd, layer.padding_nd, layer.average_count_excludes_padding = (2, 2), (1, 1), excludes
    want = F.avg_pool2d(x, 3, 2, 1, count_include_pad=not excludes)
    assert_close(net.run(layer.get_output(0)), want)


def test_average_pooling_rounded_up_never_counts_what_hangs_over(net: Any, random: Any) -> None:
    x = random(1, 2, 6, 6)
    layer = net.network.add_pooling_nd(net.given(x), net.trt.PoolingType.AVERAGE, (3, 3))
    layer.stride_nd, layer.padding_nd, layer.average_count_excludes_padding = (2, 2), (1, 1), False
    layer.padding_mode = net.trt.PaddingMode.EXPLICIT_ROUND_UP
    want = F.avg_pool2d(x, 3, 2, 1, ceil_mode=True, count_include_pad=True)
    assert_close(net.run(layer.get_output(0)), want)


def test_padding_never_wins_max_pooling(net: Any, random: Any) -> None:
    x = -1 - random(1, 2, 5, 5, 5).abs()
    layer = net.network.add_pooling_nd(net.given(x), net.trt.PoolingType.MAX, (3, 3, 3))
    layer.stride_nd, layer.pre_padding, layer.post_padding = (2, 2, 2), (1, 1, 1), (0, 0, 0)
    layer.padding_mode = net.trt.PaddingMode.EXPLICIT_ROUND_UP
    got = net.run(layer.get_output(0))
    want = F.max_pool3d(F.pad(x, (1, 1) * 3, value=-float("inf")), 3, 2)
    assert_close(got, want[tuple(slice(0, size) for size in got.shape)])


def test_blended_pooling_mixes_maximum_and_average(net: Any, random: Any) -> None:
    x = random(1, 2, 6, 6)
    layer = net.network.add_pooling_nd(net.given(x), net.trt.PoolingType.MAX_AVERAGE_BLEND, (2, 2))
    layer.stride_nd, layer.blend_factor = (2, 2), 0.25
    assert_close(net.run(layer.get_output(0)), 0.75 * F.max_pool2d(x, 2) + 0.25 * F.avg_pool2d(x, 2))


def test_local_response_normalization_matches_torch(net: Any, random: Any) -> None:
    x = random(2, 7, 3, 3)
    layer = net.network.add_lrn(net.given(x), 5, 0.1, 0.75, 2.0)
    assert_close(net.run(layer.get_output(0)), F.local_response_norm(x, 5, 0.1, 0.75, 2.0))
