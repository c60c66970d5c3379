"""What a plan is made for: a model by its numbers, and the work it is to do."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from trtkit.errors import PlanError
from trtkit.models.spec import MoeSpec
from trtkit.models.weights import model_weights

if TYPE_CHECKING:
    from trtkit.bench.counts import Counts
    from trtkit.dtypes import DType
    from trtkit.models.spec import DecoderSpec

Json = dict[str, Any]
DEFAULT_INPUT, DEFAULT_OUTPUT = 512, 128


@dataclass(frozen=True)
class Workload:
    """Requests of equal lengths, in tokens, `concurrency` of them at once. chunk: prompt tokens of one prefill step."""

    input_len: int
    output_len: int
    concurrency: int
    chunk: int

    @property
    def length(self) -> int:
        """Tokens that a slot holds at the end."""
        return self.input_len + self.output_len

    @property
    def mean_length(self) -> int:
        """Tokens that a slot holds on average while it decodes."""
        return self.input_len + (self.output_len + 1) // 2


@dataclass(frozen=True)
class DecoderModel:
    """A decoder-only LLM in one precision.

    active_parameters: those that compute one token: all, but of a mixture of experts the chosen ones.
    looked_up: parameters of tables that no product reads. max_length: the longest sequence that model, or engine, was
    made for; 0 for no limit. windows: tokens that each layer sees; 0 for all.
    """

    name: str
    model_type: str
    dtype: DType
    parameters: int
    active_parameters: int
    looked_up: int
    layers: int
    hidden_size: int
    heads: int
    kv_heads: int
    head_dim: int
    max_length: int
    windows: tuple[int, ...]

    @property
    def weight_bytes(self) -> int:
        """All weights, tables too."""
        return self.dtype.size_bytes(self.parameters)

    @property
    def kv_bytes_per_token(self) -> int:
        """Keys and values of one token in all layers; caches are linear, windows do not shorten them."""
        return self.dtype.size_bytes(2 * self.layers * self.kv_heads * self.head_dim)

    def windowed_kv_bytes(self, length: int) -> int:
        """Return what a slot's cache of `length` tokens would take if sliding layers kept no more than their window."""
        tokens = sum(min(window or length, length) for window in self.windows)
        return self.dtype.size_bytes(2 * self.kv_heads * self.head_dim * tokens)

    def to_json(self) -> Json:
        """Return all numbers."""
        derived = {"weight_bytes": self.weight_bytes, "kv_bytes_per_token": self.kv_bytes_per_token}
        windows = [] if not any(self.windows) else list(self.windows)
        return {**asdict(self), "dtype": self.dtype.name, "windows": windows, **derived}


def decoder_model(name: str, spec: DecoderSpec, dtype: DType, max_length: int = 0) -> DecoderModel:
    """Return a model's numbers. max_length: of an engine, where it is shorter than the model's."""
    sizes = {weight.path: math.prod(weight.shape) for weight in model_weights(spec)}
    parameters = sum(sizes.values())
    tables = ["position_embedding.weight", *([] if spec.head.is_tied else ["embedding.weight"])]
    limits = [limit for limit in (max_length, spec.max_position_embeddings) if limit]
    return DecoderModel(
        name,
        spec.model_type,
        dtype,
        parameters,
        parameters - _idle_parameters(spec),
        sum(sizes.get(path, 0) for path in tables),
        len(spec.layers),
        spec.hidden_size,
        spec.attention.num_attention_heads,
        spec.attention.num_key_value_heads,
        spec.attention.head_dim,
        min(limits, default=0),
        tuple(layer.sliding_window or 0 for layer in spec.layers),
    )


def workload(model: DecoderModel, asked: tuple[int | None, int | None, int], chunk: int) -> Workload:
    """Return the work, defaults filled in. asked: input and output length where given, and concurrency.

    Raises PlanError for lengths that the model does not have.
    """
    given_input, given_output, concurrency = asked
    limit = model.max_length or math.inf
    room = int(min(DEFAULT_INPUT + DEFAULT_OUTPUT, limit))
    output_len = given_output if given_output is not None else min(DEFAULT_OUTPUT, max(1, room // 4))
    input_len = given_input if given_input is not None else max(1, min(DEFAULT_INPUT, room - output_len))
    if input_len + output_len > limit:
        what = f"{input_len} + {output_len} = {input_len + output_len} tokens are above the model's {model.max_length}"
        raise PlanError(what, "--input-len, --output-len", f"lower them to {model.max_length} in all")
    return Workload(input_len, output_len, concurrency, min(input_len, chunk))


def formulas(model: DecoderModel, counts: Counts, work: Workload) -> Json:
    """Return what the published formulas say beside what was counted.

    One decode step: 2 operations for each weight but those that are looked up, and 4 N H for each cached token and
    layer. A cache: 2 layers K H elements for each token.
    Source: https://arxiv.org/abs/2001.08361 and https://arxiv.org/abs/2303.06865.
    """
    T = work.mean_length
    cached = counts.cache_bytes.at((1, 1, T)) // T
    products = sum(poly.at((1, 1, T)) for poly in counts.products.values())
    attention = 4 * model.heads * model.head_dim * model.layers * T
    formula = 2 * (model.parameters - model.looked_up) + attention
    return {
        "decode_flops": {"formula": formula, "counted": products, "ratio": formula / products},
        "kv_bytes_per_token": {"formula": model.kv_bytes_per_token, "counted": cached},
    }


def _idle_parameters(spec: DecoderSpec) -> int:
    """Return the weights of experts that a token is not given to."""
    idle = 0
    for layer in spec.layers:
        moe = layer.feed_forward
        if isinstance(moe, MoeSpec):
            matrices = 3 if moe.expert.is_gated else 2
            one = matrices * spec.hidden_size * moe.expert.intermediate_size
            idle += (moe.num_experts - moe.top_k) * one
    return idle
