"""Functions that write each of TensorRT's layer types to ONNX."""

from collections.abc import Callable

from trtkit.network.onnx.layers import attention, elementwise, quantization, reduction, shape, window
from trtkit.network.onnx.layers.layer import OnnxLayer, Value

Write = Callable[[OnnxLayer], Value | tuple[Value, ...]]
"""Emits a layer's nodes and returns its outputs. Raises NotInOnnxError."""

WRITERS: dict[str, Write] = {
    "ACTIVATION": elementwise.activation,
    "ATTENTION": attention.attention,
    "CAST": elementwise.cast,
    "CONCATENATION": shape.concatenation,
    "CONVOLUTION": window.convolution,
    "CUMULATIVE": reduction.cumulative,
    "DECONVOLUTION": window.deconvolution,
    "DEQUANTIZE": quantization.dequantize,
    "EINSUM": reduction.einsum,
    "ELEMENTWISE": elementwise.elementwise,
    "FILL": shape.fill,
    "GATHER": shape.gather,
    "GRID_SAMPLE": window.grid_sample,
    "IDENTITY": elementwise.cast,
    "KV_CACHE_UPDATE": attention.kv_cache_update,
    "LRN": window.local_response_normalization,
    "MATRIX_MULTIPLY": reduction.matrix_multiply,
    "NMS": window.non_maximum_suppression,
    "NON_ZERO": shape.non_zero,
    "NORMALIZATION": reduction.normalization,
    "ONE_HOT": shape.one_hot,
    "PADDING": shape.padding,
    "PARAMETRIC_RELU": elementwise.parametric_relu,
    "POOLING": window.pooling,
    "QUANTIZE": quantization.quantize,
    "RAGGED_SOFTMAX": reduction.ragged_softmax,
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
    "SOFTMAX": reduction.softmax,
    "SQUEEZE": shape.squeeze,
    "TOPK": reduction.top_k,
    "UNARY": elementwise.unary,
    "UNSQUEEZE": shape.unsqueeze,
}

FUNCTIONS = {
    "ATTENTION": ("Attention", ("q", "k", "v", "mask", "weights_scale", "query_lengths", "key_lengths")),
    "KV_CACHE_UPDATE": ("KVCacheUpdate", ("cache", "update", "write_indices", "lengths")),
    "NORMALIZATION": ("Normalization", ("x", "scale", "bias")),
    "ROTARY_EMBEDDING": ("RotaryEmbedding", ("x", "cos", "sin", "position_ids")),
}
"""Layer types that become local functions: their names and those of their inputs."""

TAKE_STORED_TYPES = {
    *("CAST", "DEQUANTIZE", "IDENTITY", "KV_CACHE_UPDATE", "QUANTIZE", "SHAPE", "SHUFFLE", "SQUEEZE", "UNSQUEEZE")
}
"""Layer types whose ONNX operators accept fp8, e8m0, fp4 and int4."""

REFUSED = {
    "CONDITION": "conditionals are not written",
    "CONDITIONAL_INPUT": "conditionals are not written",
    "CONDITIONAL_OUTPUT": "conditionals are not written",
    "DIST_COLLECTIVE": "ONNX has no operator that ranks exchange tensors by",
    "DYNAMIC_QUANTIZE": "ONNX has no operator that finds the scales of blocks",
    "ITERATOR": "loops are not written",
    "LOOP_OUTPUT": "loops are not written",
    "MOE": "ONNX has no operator for a mixture of experts",
    "RECURRENCE": "loops are not written",
    "TRIP_LIMIT": "loops are not written",
}
"""Reasons for refusing other layer types."""
