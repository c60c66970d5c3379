"""Maps TensorRT's layer types to the functions that lower them."""

from collections.abc import Callable

from trtkit.reference.layer import Layer, Lowered, Op
from trtkit.reference.layers import attention, collective, elementwise, product, quantization, reduction, shape, window

LOWERINGS: dict[str, Callable[[Layer], Lowered | Op]] = {
    "ACTIVATION": elementwise.activation,
    "ASSERTION": shape.assertion,
    "ATTENTION": attention.attention,
    "CAST": elementwise.cast,
    "CONCATENATION": shape.concatenation,
    "CONSTANT": reduction.constant,
    "CONVOLUTION": window.convolution,
    "CUMULATIVE": reduction.cumulative,
    "DECONVOLUTION": window.deconvolution,
    "DEQUANTIZE": quantization.dequantize,
    "DIST_COLLECTIVE": collective.dist_collective,
    "DYNAMIC_QUANTIZE": quantization.dynamic_quantize,
    "EINSUM": reduction.einsum,
    "ELEMENTWISE": elementwise.elementwise,
    "FILL": shape.fill,
    "GATHER": shape.gather,
    "GRID_SAMPLE": window.grid_sample,
    "IDENTITY": elementwise.cast,
    "KV_CACHE_UPDATE": attention.kv_cache_update,
    "LRN": window.local_response_normalization,
    "MATRIX_MULTIPLY": product.matrix_multiply,
    "MOE": reduction.mixture_of_experts,
    "NMS": window.non_maximum_suppression,
    "NON_ZERO": shape.non_zero,
    "NORMALIZATION": reduction.normalization,
    "ONE_HOT": shape.one_hot,
    "PADDING": shape.padding,
    "PARAMETRIC_RELU": elementwise.parametric_relu,
    "POOLING": window.pooling,
    "QUANTIZE": quantization.quantize,
    "RAGGED_SOFTMAX": elementwise.ragged_softmax,
    "REDUCE": reduction.reduce,
    "RESIZE": window.resize,
    "REVERSE_SEQUENCE": shape.reverse_sequence,
    "ROTARY_EMBEDDING": attention.rotary_embedding,
    "SCALE": elementwise.scale,
    "SCATTER": shape.scatter,
    "SELECT": elementwise.select,
    "SHAPE": shape.shape,
    "SHUFFLE": shape.shuffle,
    "SLICE": shape.slice_layer,
    "SOFTMAX": elementwise.softmax,
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
"""Layer types whose output is memory that is not shared."""
