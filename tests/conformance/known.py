"""Why cases differ where the reference executor computes the network as TensorRT's parser wrote it.

Each was checked on the parsed network: the parser drops or misreads an attribute, or TensorRT's layer is defined
otherwise than the ONNX operator.
"""

from __future__ import annotations

import re

_CAUSES = (
    (
        r"(averagepool|maxpool)_2d_ceil",
        "TensorRT rounds the output size up also for a window that starts in the padding",
    ),
    (
        r"resize_downsample_scales_\w+_align_corners",
        "ONNX aligns the corner of scale * size as it is, TensorRT of the size rounded down",
    ),
    (r"stft", "the parser computes it as a product with cosines and sines in fp32, the case is nearer by 2e-4"),
    (r"mod_float_edge_cases", "the rest of a division by infinity, which the rewrite computes as NaN"),
    (
        r"cast(like)?_\w*_to_INT4",
        "out of range, undefined in ONNX: the case wraps, the executor saturates",
    ),
    (r"cast(like)?_no_saturate", "the parser ignores `saturate=0` of Cast"),
    (r"_to_FLOAT4E2M1", "NaN, which fp4 lacks: the case has zero, the executor the largest value as NVIDIA GPUs"),
    (r"loop11$", "the parser makes a network input of a value inside the loop's body"),
)


def known_cause(name: str) -> str:
    """Return why this case differs, empty where nothing is known."""
    return next((cause for pattern, cause in _CAUSES if re.search(pattern, name)), "")
