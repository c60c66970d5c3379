from __future__ import annotations

from trtkit.jobs.trt_log import error_lines, last_lines, last_parsed_node, warning_lines

# As TensorRT-RTX 1.7.1 writes it on a machine without a GPU.
LOG = """\
[11/21/2026-07:44:25] [TRT] [W] Unable to determine GPU memory usage: no CUDA-capable device is detected
[11/21/2026-07:44:25] [TRT] [E] [optimizer.cpp::load::12] Error Code 1: Cuda Runtime (cudaError 35)
[11/21/2026-07:44:26] [TRT] [V] Parsing node: stem/conv [Conv]
[11/21/2026-07:44:26] [TRT] [V] Parsing node: /layer.0/Gelu_7 [Gelu]
[11/21/2026-07:44:26] [TRT] [W] Weights are clipped.
[11/21/2026-07:44:26] [TRT] [W] Weights are clipped.
[11/21/2026-07:44:27] [TRT] [E] IBuilder::build: Error Code 4: FP32 GEMM is not supported
[11/21/2026-07:44:27] [TRT] [F] out of scratch
not a log line [TRT] [E] at all

"""


def test_error_lines_leave_out_the_noise_of_a_missing_gpu() -> None:
    assert error_lines(LOG) == ["IBuilder::build: Error Code 4: FP32 GEMM is not supported", "out of scratch"]


def test_warnings_come_once() -> None:
    assert warning_lines(LOG)[-1] == "Weights are clipped."
    assert len(warning_lines(LOG)) == 2


def test_last_parsed_node_has_operator_and_name() -> None:
    assert last_parsed_node(LOG) == "Gelu `/layer.0/Gelu_7`"
    assert last_parsed_node("nothing") == ""


def test_last_lines_skip_empty_ones() -> None:
    assert last_lines(LOG, 2) == "[11/21/2026-07:44:27] [TRT] [F] out of scratch\nnot a log line [TRT] [E] at all"
