"""A sample of the ONNX node cases on every run; all of them with `-m conformance`."""

from __future__ import annotations

from typing import Any

import pytest

from trtkit.backends import load_backend

from .__main__ import collect, run_all
from .case import is_explained, run_case

SAMPLE = [
    "abs",
    "add_bcast",
    "and_bcast3v1d",
    "argmax_keepdims_random",
    "averagepool_2d_ceil",
    "averagepool_3d_default",
    "attention_4d_gqa",
    "attention_3d_causal",
    "basic_conv_with_padding",
    "batchnorm_example",
    "cast_DOUBLE_to_FLOAT",
    "ceil_example",
    "celu_expanded",
    "clip_outbounds",
    "concat_3d_axis_1",
    "conv_with_autopad_same",
    "constantofshape_float_ones",
    "convtranspose_output_shape",
    "convtranspose_pads",
    "cumsum_2d_axis_1",
    "depthtospace_crd_mode_example",
    "dequantizelinear_axis",
    "div_int32_trunc",
    "einsum_batch_diagonal",
    "elu_example",
    "equal_bcast",
    "expand_dim_changed",
    "eyelike_with_dtype",
    "gather_negative_indices",
    "gather_elements_1",
    "gathernd_example_int32",
    "gemm_all_attributes",
    "gridsample_bilinear",
    "gru_with_initial_bias",
    "hardmax_axis_1",
    "if",
    "instancenorm_epsilon",
    "layer_normalization_4d_axis1",
    "leakyrelu",
    "lrn",
    "lstm_with_peepholes",
    "matmul_4d",
    "maxpool_2d_ceil",
    "maxpool_3d_dilations",
    "mod_mixed_sign_int32",
    "nllloss_NC_expanded",
    "nonmaxsuppression_center_point_box_format",
    "nonmaxsuppression_limit_output_size",
    "nonzero_example",
    "onehot_with_axis",
    "pow_types_float32_int32",
    "prelu_broadcast",
    "quantizelinear_int4",
    "range_float_type_positive_delta",
    "reduce_max_empty_set",
    "resize_downsample_scales_cubic_A_n0p5_exclude_outside",
    "reversesequence_batch",
    "rotary_embedding_interleaved",
    "round",
    "scan_sum",
    "scatter_elements_with_axis",
    "scatternd",
    "softmax_axis_1",
    "split_equal_parts_2d",
    "squeeze_negative_axes",
    "top_k_smallest",
    "transpose_all_permutations_3",
    "tril_neg",
    "upsample_nearest",
    "where_example",
]


@pytest.fixture(scope="module")
def cases() -> dict[str, Any]:
    return {case.name.removeprefix("test_"): case for case in collect()}


def test_sampled_cases_that_build_match_their_expected_outputs(cases: dict[str, Any]) -> None:
    backend = load_backend("tensorrt_rtx")
    outcomes = [run_case(backend, cases[name]) for name in SAMPLE]
    wrong = [outcome for outcome in outcomes if outcome.parsed and not outcome.matched]
    assert not wrong, wrong
    assert sum(outcome.built for outcome in outcomes) >= 50


@pytest.mark.conformance
def test_every_case_that_parses_matches_or_has_a_known_cause() -> None:
    outcomes = run_all(collect(), processes=2)
    unexplained = [item for item in outcomes if item.parsed and not item.matched and not is_explained(item)]
    assert not unexplained, unexplained
    assert sum(outcome.built and outcome.matched for outcome in outcomes) >= 900
