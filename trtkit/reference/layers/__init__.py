"""From TensorRT's layer types to the functions that lower them."""

from collections.abc import Callable

from trtkit.reference.layer import Layer, Lowered, Op
from trtkit.reference.layers import (
    activation,
    convolution,
    elementwise,
    fill,
    indexing,
    matmul,
    pooling,
    reduction,
    resize,
    shape,
    slicing,
)

LOWERINGS: dict[str, Callable[[Layer], Lowered | Op]] = {
    "ACTIVATION": activation.activation,
    "ASSERTION": shape.assertion,
    "CAST": elementwise.cast,
    "CONCATENATION": shape.concatenation,
    "CONSTANT": matmul.constant,
    "CONVOLUTION": convolution.convolution,
    "CUMULATIVE": reduction.cumulative,
    "DECONVOLUTION": convolution.deconvolution,
    "EINSUM": matmul.einsum,
    "ELEMENTWISE": elementwise.elementwise,
    "FILL": fill.fill,
    "GATHER": indexing.gather,
    "GRID_SAMPLE": resize.grid_sample,
    "IDENTITY": elementwise.cast,
    "LRN": pooling.local_response_normalization,
    "MATRIX_MULTIPLY": matmul.matrix_multiply,
    "NON_ZERO": indexing.non_zero,
    "NORMALIZATION": reduction.normalization,
    "ONE_HOT": shape.one_hot,
    "PADDING": shape.padding,
    "PARAMETRIC_RELU": activation.parametric_relu,
    "POOLING": pooling.pooling,
    "RAGGED_SOFTMAX": activation.ragged_softmax,
    "REDUCE": reduction.reduce,
    "RESIZE": resize.resize,
    "REVERSE_SEQUENCE": shape.reverse_sequence,
    "SCALE": activation.scale,
    "SCATTER": indexing.scatter,
    "SELECT": elementwise.select,
    "SHAPE": shape.shape,
    "SHUFFLE": shape.shuffle,
    "SLICE": slicing.slice_layer,
    "SOFTMAX": activation.softmax,
    "SQUEEZE": shape.squeeze,
    "TOPK": reduction.top_k,
    "UNARY": elementwise.unary,
    "UNSQUEEZE": shape.unsqueeze,
}

OWNING = frozenset(
    {
        "ACTIVATION",
        "CONCATENATION",
        "CONVOLUTION",
        "DECONVOLUTION",
        "ELEMENTWISE",
        "MATRIX_MULTIPLY",
        "NORMALIZATION",
        "POOLING",
        "SCALE",
        "SOFTMAX",
    }
)
"""Layer types whose output is memory that nothing else refers to."""
