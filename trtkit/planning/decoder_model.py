"""The subject of a plan: a model's figures, and its workload."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any

from trtkit.dtypes import DTYPES
from trtkit.errors import PlanError
from trtkit.models.feed_forward import MoeSpec
from trtkit.models.weights import model_weights
from trtkit.planning.paged import read_window, whole_pages
from trtkit.quantization.llm.choice import linear_layers
from trtkit.quantized_model import describe

if TYPE_CHECKING:
    from trtkit.dtypes import DType
    from trtkit.models.attention import AttentionSpec
    from trtkit.models.spec import DecoderSpec
    from trtkit.planning.counts import NetworkCounts, Point
    from trtkit.planning.formats import Format
    from trtkit.quantization_methods import CacheFormat
    from trtkit.quantized_model import QuantizedModel

Json = dict[str, Any]
DEFAULT_INPUT, DEFAULT_OUTPUT = 512, 128


@dataclass(frozen=True)
class Workload:
    """`concurrency` simultaneous requests of equal lengths, in tokens. chunk: prompt tokens per prefill step.

    slot_length: capacity of a slot in tokens. page_tokens: tokens per page, 0 if caches are linear. copies_pages:
    whether a step copies pages, so that attention reads whole ones. reads_used: whether attention reads only the tokens
    in use of a linear cache (`llm.kv_window`), rather than the whole slot.
    """

    input_len: int
    output_len: int
    concurrency: int
    chunk: int
    slot_length: int
    page_tokens: int = 0
    copies_pages: bool = False
    reads_used: bool = False

    @property
    def length(self) -> int:
        """Tokens in a slot at the end."""
        return self.input_len + self.output_len

    @property
    def mean_length(self) -> int:
        """Tokens in a slot on average during decoding."""
        return self.input_len + (self.output_len + 1) // 2

    @property
    def read_lengths(self) -> dict[str, int]:
        """Cached tokens per slot that attention reads at the mean length, by `llm.kv_window`."""
        used = self._used(self.mean_length)
        return {"used": used} if self.page_tokens else {"full": self.slot_length, "used": used}

    def prefill(self, batch: int = 1) -> Point:
        """Return the (B, S, T) of a step that prefills `batch` whole prompts."""
        return batch, self.input_len, self._read(self.input_len)

    def decode(self, batch: int | None = None) -> Point:
        """Return the (B, S, T) of a decode step at the mean length, of all requests by default."""
        return self.call(self.concurrency if batch is None else batch, 1, self.mean_length)

    def call(self, batch: int, new: int, length: int) -> Point:
        """Return the (B, S, T) of a call for `new` tokens of each sequence, after which `length` are cached."""
        return batch, new, self._read(length)

    def last_chunk(self, tokens: int) -> Point:
        """Return the (B, S, T) of a step that reads the last `tokens` of one prompt."""
        return 1, tokens, self._read(self.input_len)

    def _read(self, tokens: int) -> int:
        """Return how many tokens of a slot attention reads if `tokens` are in use."""
        return self._used(tokens) if self.page_tokens or self.reads_used else self.slot_length

    def _used(self, tokens: int) -> int:
        """Return how many tokens attention reads if it reads only those in use."""
        if self.page_tokens and not self.copies_pages:
            return tokens
        return read_window(tokens, self.slot_length, self.page_tokens)


@dataclass(frozen=True)
class DecoderModel:
    """A decoder-only LLM in one precision.

    active_parameters: those that compute one token: all, or in a mixture of experts those of the chosen ones.
    looked_up: parameters of tables that no product reads. max_length: the longest sequence of the model or engine; 0
    for no limit. layers: number of layers. attention: of each layer that has it. state_bytes: of one sequence's
    recurrent states. adapter_bytes: of all resident LoRA adapters. page_tokens: tokens per page, 0 if caches are
    linear. saved_bytes: saved by quantized weights. cache_dtype: None for the model's own. head_bytes,
    head_kv_bytes_per_token: of the draft head. quantized: description of what is quantized.
    """

    name: str
    model_type: str
    dtype: DType
    parameters: int
    active_parameters: int
    looked_up: int
    hidden_size: int
    vocab_size: int
    layers: int
    attention: tuple[AttentionSpec, ...]
    max_length: int
    state_bytes: int = 0
    saved_bytes: int = 0
    cache_dtype: DType | None = None
    types: tuple[str, ...] = ()
    quantized: str = ""
    adapter_bytes: int = 0
    page_tokens: int = 0
    head_bytes: int = 0
    head_kv_bytes_per_token: int = 0

    @property
    def has_windows(self) -> bool:
        """Whether any layer uses sliding-window attention."""
        return any(layer.sliding_window for layer in self.attention)

    @property
    def weight_bytes(self) -> int:
        """Bytes of all weights, including tables."""
        return self.dtype.size_bytes(self.parameters) - self.saved_bytes

    @property
    def kv_dtype(self) -> DType:
        """Data type of the caches."""
        return self.cache_dtype or self.dtype

    @property
    def cache_format(self) -> CacheFormat | None:
        """Format of 8-bit caches; None if they have the network's type."""
        formats: dict[str, CacheFormat] = {"int8": "int8", "fp8": "fp8"}
        return formats.get(self.kv_dtype.name)

    @property
    def keeps_new(self) -> bool:
        """Whether new keys and values need memory in addition to the caches."""
        return self.kv_dtype.bits == 8 or self.page_tokens > 0

    def slot_bytes(self, length: int) -> int:
        """Return the bytes of cache and recurrent states of one sequence of `length` tokens."""
        held = whole_pages(length, self.page_tokens) * self.page_tokens if self.page_tokens else length
        return self.kv_bytes_per_token * held + self.state_bytes

    def takes(self, form: Format) -> bool:
        """Whether a format is possible for weights and caches."""
        return form.kv_bits is None or bool(self.attention)

    @property
    def kv_bytes_per_token(self) -> int:
        """Bytes of one token's keys and values in all layers, ignoring windows."""
        return self.kv_dtype.size_bytes(sum(layer.cached_elements for layer in self.attention))

    def windowed_kv_bytes(self, length: int) -> int:
        """Return a slot's bytes for `length` tokens if sliding-window layers kept only their window."""
        kept = (min(layer.sliding_window or length, length) * layer.cached_elements for layer in self.attention)
        return self.kv_dtype.size_bytes(sum(kept)) + self.state_bytes

    def to_json(self) -> Json:
        """Return all figures. Those of attention are lists if layers differ."""
        numbers = {field.name: getattr(self, field.name) for field in fields(self) if field.name != "attention"}
        heads = {
            "heads": _common([layer.num_attention_heads for layer in self.attention]),
            "kv_heads": _common([layer.num_key_value_heads for layer in self.attention]),
            "head_dim": _common([layer.head_dim for layer in self.attention]),
            "windows": [layer.sliding_window or 0 for layer in self.attention] if self.has_windows else [],
        }
        types = {"dtype": self.dtype.name, "cache_dtype": self.kv_dtype.name}
        derived = {"weight_bytes": self.weight_bytes, "kv_bytes_per_token": self.kv_bytes_per_token}
        return {**numbers, **types, **heads, **derived}

    def quantized_as(self, spec: DecoderSpec, quantized: QuantizedModel) -> DecoderModel:
        """Return the model with layers and caches in low precision."""
        sizes = {layer.name: (layer.rows, layer.size) for layer in linear_layers(spec)}
        saved = sum(
            self.dtype.size_bytes(math.prod(sizes[name])) - form.size_bytes(*sizes[name], self.dtype)
            for name, form in quantized.layers.items()
        )
        cache = DTYPES[quantized.kv_cache] if quantized.kv_cache else None
        return replace(self, saved_bytes=saved, cache_dtype=cache, types=quantized.types, quantized=describe(quantized))


def decoder_model(name: str, spec: DecoderSpec, dtype: DType, max_length: int = 0) -> DecoderModel:
    """Return a model's figures. max_length: of an engine, if it is shorter than the model's."""
    sizes = {weight.path: math.prod(weight.shape) for weight in model_weights(spec)}
    parameters = sum(sizes.values())
    tables = [
        "position_embedding.weight",
        "per_layer_table.weight",
        *([] if spec.head.is_tied else ["embedding.weight"]),
    ]
    limits = [limit for limit in (max_length, spec.max_position_embeddings) if limit]
    return DecoderModel(
        name,
        spec.model_type,
        dtype,
        parameters,
        parameters - _idle_parameters(spec),
        sum(sizes.get(path, 0) for path in tables),
        spec.hidden_size,
        spec.vocab_size,
        len(spec.layers),
        spec.attentions,
        min(limits, default=0),
        spec.state_bytes(dtype),
    )


def workload(
    model: DecoderModel,
    input_len: int | None,
    output_len: int | None,
    *,
    concurrency: int,
    chunk: int,
    slot_length: int = 0,
) -> Workload:
    """Return the workload. Raises PlanError for lengths that the model does not support.

    input_len, output_len: of prompts and answers; None for the defaults. slot_length: the engine's, if known.
    """
    limit = model.max_length or math.inf
    room = int(min(DEFAULT_INPUT + DEFAULT_OUTPUT, limit))
    output_len = min(DEFAULT_OUTPUT, max(1, room // 4)) if output_len is None else output_len
    input_len = max(1, min(DEFAULT_INPUT, room - output_len)) if input_len is None else input_len
    if input_len + output_len > limit:
        total = input_len + output_len
        what = f"{input_len} + {output_len} = {total} tokens exceed the model's limit of {model.max_length}"
        raise PlanError(what, "--input-len, --output-len", f"lower them to at most {model.max_length} together")
    return Workload(input_len, output_len, concurrency, min(input_len, chunk), max(slot_length, input_len + output_len))


@dataclass(frozen=True)
class DecodeFlops:
    """Operations of a decode step. ratio: the formula's to the counted ones."""

    formula: int
    counted: int
    ratio: float


@dataclass(frozen=True)
class CacheBytes:
    """Bytes of a token's cache."""

    formula: int
    counted: int


@dataclass(frozen=True)
class Formulas:
    """Results of published formulas, compared with the counts."""

    decode_flops: DecodeFlops
    kv_bytes_per_token: CacheBytes


def formulas(model: DecoderModel, counts: NetworkCounts, work: Workload) -> Formulas:
    """Return the results of published formulas for comparison with the counts.

    One decode step: 2 operations per weight that is read, except in lookups, and 4 N H per cached token and layer; all
    neurons count as active. A cache: 2 layers K H elements per token. Source: https://arxiv.org/abs/2001.08361 and
    https://arxiv.org/abs/2303.06865.
    """
    T = work.mean_length
    cached = counts.cache_bytes.at((1, 1, T)) // T
    products = sum(poly.at((1, 1, T)) for poly in replace(counts, active=None).of_step((1, 1, T)).products.values())
    attention = 4 * T * sum(layer.num_attention_heads * layer.head_dim for layer in model.attention)
    computed = model.parameters if counts.mixture is None else model.active_parameters
    formula = 2 * (computed - model.looked_up) + attention
    return Formulas(
        DecodeFlops(formula, products, formula / products),
        CacheBytes(model.kv_bytes_per_token, cached),
    )


def _common(numbers: list[int]) -> int | list[int]:
    """Return the number that all layers share, or a list of each layer's; 0 for no layers."""
    if not numbers:
        return 0
    return numbers[0] if len(set(numbers)) == 1 else numbers


def _idle_parameters(spec: DecoderSpec) -> int:
    """Return the number of weights in experts that do not process a given token."""
    idle = 0
    for layer in spec.layers:
        moe = layer.feed_forward
        if isinstance(moe, MoeSpec):
            matrices = 3 if moe.expert.is_gated else 2
            sizes = moe.expert_inputs(spec.hidden_size), moe.expert.intermediate_size
            biases = (matrices - 1) * sizes[1] + sizes[0] if moe.expert.has_bias else 0
            one = matrices * sizes[0] * sizes[1] + biases
            idle += (moe.num_experts - moe.routing.top_k) * one
    return idle
