"""Why cases differ where the reference executor computes the network as TensorRT's parser wrote it.

Each was checked on the parsed network: the parser drops or misreads an attribute, or TensorRT's layer is defined
otherwise than the ONNX operator.
"""

from __future__ import annotations

import re

_CAUSES = (
    (r"triu", "the parser takes Trilu without `upper` for the lower triangle; ONNX's default is the upper one"),
    (r"(gru|lstm|simple_rnn)_batchwise", "the parser ignores `layout=1` of RNN, GRU and LSTM"),
    (r"attention_\w*causal_nonpad", "the parser drops `nonpad_kv_seqlen` and anchors the causal mask at the first key"),
    (r"attention_(local|bidirectional)_window", "the parser ignores Attention's window attribute"),
    (r"spacetodepth_crd", "the parser ignores `mode=CRD` of SpaceToDepth"),
    (
        r"(averagepool|maxpool)_2d_ceil",
        "TensorRT rounds the output size up also for a window that starts in the padding",
    ),
    (r"nonmaxsuppression_two_classes", "TensorRT's NMS orders boxes by score within an image, ONNX by class"),
    (r"quantizelinear(_axis)?$", "the parser makes int8 of a uint8 output, which TensorRT then refuses"),
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
