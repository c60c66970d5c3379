"""Attention, the update of a KV cache and rotary embedding: functions of standard operators.

B sequences, S new tokens, T cached tokens, N query heads, K key/value heads, H head size.
"""

from trtkit.dtypes import BOOL, FP32
from trtkit.network.onnx.layers.layer import NotInOnnxError, OnnxLayer, Value
from trtkit.network.onnx.layers.quantization import rounded

_MASK, _SCALE, _KEY_LENGTHS = 3, 4, 6


def attention(layer: OnnxLayer) -> Value:
    """Compute softmax(q k^T + mask) v in fp32: q [B, N, S, H], k and v [B, K, T, H].

    Not ONNX's Attention: TensorRT's has a length per sequence, and returns zeros for rows with no key to attend to.
    """
    if "PACKED_NHD" in (layer.option("query_form"), layer.option("key_value_form")):
        raise NotInOnnxError("its sequences are packed")
    e = layer.emitter
    heads, shared = layer.static_size(0, 1), layer.static_size(1, 1)
    q, k, v = (_fp32(layer, index) for index in range(3))
    is_grouped = heads != shared
    if is_grouped:  # [B, K, N / K, S, H] and [B, K, 1, T, H]
        q = _grouped(layer, q, shared, heads // shared)
        k, v = (e.emit("Unsqueeze", item, e.constant([2])) for item in (k, v))
    order = [0, 1, 2, 4, 3] if is_grouped else [0, 1, 3, 2]
    scores = e.emit("MatMul", q, e.emit("Transpose", k, perm=order))
    y = e.emit("MatMul", _weights(layer, scores, is_grouped), v)
    if is_grouped:
        sizes = e.emit("Concat", e.shape(layer.value(0), 0, 3), e.shape(layer.value(2), 3), axis=0)
        y = e.emit("Reshape", y, sizes)
    return layer.narrowed(y)


def _fp32(layer: OnnxLayer, index: int) -> Value:
    value = layer.value(index)
    return value if layer.input(index).dtype == FP32 else layer.emitter.cast(value, FP32)


def _grouped(layer: OnnxLayer, value: Value, shared: int, group: int) -> Value:
    """Split the heads [B, N, ...] into [B, K, N / K, ...]."""
    e = layer.emitter
    sizes = e.emit("Concat", e.shape(value, 0, 1), e.constant([shared, group]), e.shape(value, 2), axis=0)
    return e.emit("Reshape", value, sizes)


def _weights(layer: OnnxLayer, scores: Value, is_grouped: bool) -> Value:
    e, nothing = layer.emitter, layer.emitter.constant(-float("inf"), "float32")
    is_softmax = layer.option("norm_op") == "SOFTMAX"
    mask, allowed = _mask(layer, is_grouped), _allowed(layer)
    if allowed and is_grouped:
        allowed = e.emit("Unsqueeze", allowed, e.constant([2]))
    if mask and layer.input(_MASK).dtype != BOOL:
        scores = e.emit("Add", scores, mask)
    elif mask:
        allowed = e.emit("And", mask, allowed) if allowed else mask
    if allowed and not is_softmax:
        if mask and layer.input(_MASK).dtype != BOOL:
            raise NotInOnnxError("a mask that is added, lengths or causality, and no softmax")
        scores = e.emit("Where", allowed, scores, e.constant(0, "float32"))
    elif allowed:
        scores = e.emit("Where", allowed, scores, nothing)
    if is_softmax:
        highest = e.emit("ReduceMax", scores, e.constant([-1]))
        weights = e.emit("Softmax", scores, axis=-1)
        scores = e.emit("Where", e.emit("Equal", highest, nothing), e.constant(0, "float32"), weights)
    if not layer.has(_SCALE):
        return scores
    scale = e.emit("Reshape", _fp32(layer, _SCALE), e.constant([]))
    return rounded(layer, scores, scale, layer.option("normalization_quantize_to_type"))


def _mask(layer: OnnxLayer, is_grouped: bool) -> Value:
    """Return the mask [B, N or 1, S, T], with heads split like the queries'; empty without a mask."""
    if not layer.has(_MASK):
        return ""
    e, value = layer.emitter, layer.value(_MASK)
    value = value if layer.input(_MASK).dtype in (BOOL, FP32) else e.cast(value, FP32)
    if not is_grouped:
        return value
    if layer.static_size(_MASK, 1) == 1:
        return e.emit("Unsqueeze", value, e.constant([2]))
    shared = layer.static_size(1, 1)
    return _grouped(layer, value, shared, layer.static_size(0, 1) // shared)


def _allowed(layer: OnnxLayer) -> Value:
    """Return the mask from lengths and causality, [B or 1, 1, S or 1, T]; empty if all is allowed."""
    e, causal = layer.emitter, layer.option("causal_kind")
    if not layer.has(_KEY_LENGTHS) and causal == "NONE":
        return ""
    tokens = e.size(layer.value(1), 2)
    column, ends, allowed = e.ramp(tokens), tokens, ""
    if layer.has(_KEY_LENGTHS):
        ends = e.emit("Reshape", layer.int64(_KEY_LENGTHS), e.constant([-1, 1, 1, 1]))
        allowed = e.emit("Less", column, ends)
    if causal == "NONE":
        return allowed
    new = e.size(layer.value(0), 2)
    row = e.emit("Reshape", e.ramp(new), e.constant([1, 1, -1, 1]))
    if causal == "LOWER_RIGHT":
        row = e.emit("Add", row, e.emit("Sub", ends, new))
    earlier = e.emit("LessOrEqual", column, row)
    return e.emit("And", allowed, earlier) if allowed else earlier


def kv_cache_update(layer: OnnxLayer) -> Value:
    """Write new keys or values [B, K, S, H] into a cache [B, K, T, H] from each sequence's write index on."""
    if layer.option("update_form") == "PACKED_NHD" and layer.has(3):
        raise NotInOnnxError("its updates are packed")
    inputs = (layer.value(0), layer.value(1), layer.int64(2))
    return layer.emitter.emit("TensorScatter", *inputs, axis=-2, mode="linear")


def rotary_embedding(layer: OnnxLayer) -> Value:
    """Rotate pairs of the first elements of x [B, N, S, H] by their position's angles, in at least fp32."""
    e, size = layer.emitter, layer.number("rotary_embedding_dim") or layer.static_size(0, 3)
    x, tables = layer.widened(), [layer.widened(index) for index in (1, 2)]
    if layer.is_narrow():
        tables = [
            table if layer.is_narrow(index) else e.cast(table, FP32) for index, table in enumerate(tables, start=1)
        ]
    positions = layer.int64(3) if layer.has(3) else ""
    attributes = {"interleaved": int(layer.flag("interleaved"))}
    rest = ""
    if size < layer.static_size(0, 3):
        bounds = [e.constant([bound]) for bound in (0, size, layer.static_size(0, 3), 3)]
        rest = e.emit("Slice", x, bounds[1], bounds[2], bounds[3])
        x = e.emit("Slice", x, bounds[0], bounds[1], bounds[3])
    turned = e.emit("RotaryEmbedding", x, *tables, positions, **attributes)
    return layer.narrowed(e.emit("Concat", turned, rest, axis=-1) if rest else turned)
