"""A decoder-only LLM's source, spec, sizes and profiles, derived from its config."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

from trtkit.builder.active_neurons import sparse_ffn_problems, with_active_blocks
from trtkit.builder.plugins import reads_pages_in_place
from trtkit.builder.speculators import JoinedWeights, open_config_speculator
from trtkit.builder.stages import DecoderSize
from trtkit.config.llm import LlmOptions
from trtkit.dtypes import dtype_of
from trtkit.errors import ConfigError, Problem
from trtkit.lora.merge import open_language_model
from trtkit.lora.targets import adapted_layers, check_stages
from trtkit.models.context import context_of
from trtkit.models.parallel import SINGLE, check_grid, grid_of, rank_spec
from trtkit.models.rank_weights import RankWeights
from trtkit.models.registry import decoder_spec
from trtkit.models.rope import original_length
from trtkit.models.weights import find_weights, model_weights, stored_spec
from trtkit.network.decoder import build_decoder
from trtkit.network.decoder_options import DecoderOptions
from trtkit.network.input_spec import MOST_ROW_TOKENS, TOKEN_TILE, ProfileShapes, kv_window, takes_packed_calls
from trtkit.network.speculators import build_speculator
from trtkit.sources import decoder_source
from trtkit.sources.checkpoint import converted_elements

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from trtkit.builder.speculators import OpenedSpeculator
    from trtkit.config.schema import ModelConfig
    from trtkit.models.model import StagedModel
    from trtkit.models.spec import DecoderSpec
    from trtkit.network.graph import Graph
    from trtkit.network.input_spec import InputSpec, ResolvedProfile, Role
    from trtkit.sources.decoder_source import DecoderSource


@dataclass(frozen=True, eq=False)
class OpenedDecoder:
    """A language model with its source open, ready for writing networks.

    spec: of the whole model. rank: which rank of the config's grid to write.
    """

    model: StagedModel
    source: DecoderSource
    spec: DecoderSpec
    rank: int = 0

    @property
    def config(self) -> ModelConfig:
        """The config of the whole model."""
        return self.model.config

    @property
    def takes_embeddings(self) -> bool:
        """Whether the engine takes embeddings instead of token ids.

        If the config sets it, or the model takes images.
        """
        return takes_embeddings(self.model)

    @property
    def is_packed(self) -> bool:
        """Whether decoding and prompts share a call."""
        return is_packed(self.config)

    @property
    def rank_spec(self) -> DecoderSpec:
        """The rank's share of the model."""
        return rank_spec(self.spec, grid_of(self.config), self.rank)

    @property
    def adapted(self) -> frozenset[str]:
        """Layers that can take adapters at run time. Raises ConfigError for targets that the model does not have."""
        return _adapted(self.spec, llm_options(self.config))

    def weights(self) -> Mapping[str, Any]:
        """Return the rank's weights by path, read lazily. Raises what `all_weights` does."""
        whole = self.all_weights()
        return whole if grid_of(self.config) == SINGLE else RankWeights(self.spec, self.rank_spec, whole)

    def all_weights(self) -> Mapping[str, Any]:
        """Return the whole model's weights. Raises SourceError, ProblemsError for missing or mismatched ones."""
        return find_weights(self.spec, self.source.checkpoint, self.source.where)

    @cached_property
    def speculator(self) -> OpenedSpeculator | None:
        """The draft head, if the config names one. Raises ConfigError, SourceError, ProblemsError."""
        has_quantized_caches = self.source.kv_cache is not None
        return open_config_speculator(self.config, self.spec, has_quantized_caches=has_quantized_caches)

    def write(self, graph: Graph, weights: Mapping[str, Any], logits: Literal["all", "last"] | None = None) -> Graph:
        """Write the network into the empty `graph`. logits: overrides the config's setting."""
        graph_options = self.options(graph.backend.name, logits)
        if self.speculator is not None:
            weights = JoinedWeights(weights, self.speculator.fusion)
        build_decoder(graph, self.rank_spec, weights, graph_options)
        return graph

    def options(self, backend: str, logits: Literal["all", "last"] | None = None) -> DecoderOptions:
        """Return the options for writing the network for a backend. Raises ConfigError for plugins that it lacks."""
        in_place = reads_pages_in_place(self.config, backend)
        fusion = None if self.speculator is None else self.speculator.spec.fusion
        return replace(
            network_options(self.model, logits),
            is_packed=self.is_packed,
            kv_cache=self.source.kv_cache,
            adapted=self.adapted,
            has_pages_in_place=in_place,
            fusion=fusion,
            gives_last_hidden=self.speculator is not None and fusion is None,
            has_tree=llm_options(self.config).tree_tokens is not None,
        )

    def write_speculator(self, graph: Graph) -> Graph:
        """Write the draft head's network into the empty `graph`."""
        opened = self.speculator
        assert opened is not None
        arrays = opened.weights(self.all_weights() if opened.borrowed else {})
        build_speculator(graph, opened.spec, opened.ids, arrays, network_options(self.model))
        return graph


def open_decoder(model: StagedModel, quantized: Path | None = None, rank: int = 0) -> OpenedDecoder:
    """Open a language model's source, or the checkpoint `quantized` made from it, for one rank of its grid.

    Raises ConfigError for options that the model or the method does not support, SourceError, ProblemsError.
    """
    source = open_config_source(model.config, quantized)
    return OpenedDecoder(model, source, checked_spec(model.config, source), rank)


def open_config_source(config: ModelConfig, quantized: Path | None = None) -> DecoderSource:
    """Open the source of the network's weights. Raises ConfigError for `as_stored` with a source other than GGUF."""
    if quantized is not None:
        return decoder_source.open_hf_folder(quantized)
    keeps = config.quantize is not None and config.quantize.keeps_stored
    if keeps and config.source.gguf is None:
        what = "`as_stored` applies to GGUF files; other quantized checkpoints are kept as stored anyway"
        raise ConfigError("the config does not fit its source", [Problem(what, "quantize.method", "remove `quantize`")])
    return open_language_model(config.source, keep_quantized=keeps)


def makes_checkpoint(config: ModelConfig) -> bool:
    """Whether building an LLM starts by quantizing it."""
    options = config.quantize
    return options is not None and not options.is_idle and not options.keeps_stored


def head_note(spec: DecoderSpec, opened: DecoderSource) -> str:
    """Return a note if a stored LM head is used although the config ties it to the embedding; else empty."""
    if spec.head.is_tied or not decoder_spec(opened.config, opened.where).head.is_tied:
        return ""
    return f"the stored `{spec.names['lm_head']}.weight` is used, since it differs from the tied embedding"


def rope_note(spec: DecoderSpec, options: LlmOptions) -> str:
    """Return a note if rotary embeddings differ from transformers' for short sequences; else empty.

    LongRoPE has factors for short and for long sequences. An engine uses one set of them, since cached keys cannot be
    rotated again when a sequence grows.
    """
    ropes = [
        rope for attention in spec.attentions if (rope := attention.rope) is not None and rope.scaling == "longrope"
    ]
    if not ropes:
        return ""
    original, length = original_length(ropes[0]), options.max_sequence_length
    if length <= original:
        return ""
    short = f"transformers takes the short ones up to {original} tokens"
    return f"long factors at every length; {short}: `llm.max_sequence_length={original}` builds with those"


def checked_spec(config: ModelConfig, opened: DecoderSource) -> DecoderSpec:
    """Return the model's spec, checked against the config.

    Raises ConfigError for slots longer than the model's positions, more new tokens per call than the model takes, other
    options that do not fit the model, and a grid that cannot share it.
    """
    spec = stored_spec(opened.config, opened.where, opened.checkpoint)
    if (source := llm_options(config).max_source_length) is not None:
        spec = spec.with_source_length(source)
    options, limit, most = llm_options(config), spec.max_position_embeddings, spec.most_new_tokens
    problems = []
    if limit and options.max_sequence_length > limit:
        what = f"{options.max_sequence_length} is above the model's `max_position_embeddings`, {limit}"
        problems.append(Problem(what, "llm.max_sequence_length", f"lower it to {limit} or less"))
    if most is not None and options.max_prefill_length > most:
        what = f"{options.max_prefill_length} is above {most}, the most new tokens that recurrent layers take at once"
        problems.append(Problem(what, "llm.max_prefill_length", f"lower it to {most} or less"))
    if options.latent_attention == "expanded" and not any(attention.latent for attention in spec.attentions):
        what = "`expanded` does not apply to a model without latent attention"
        problems.append(Problem(what, "llm.latent_attention", "leave it out"))
    if options.kv == "paged" and not spec.attentions:
        what = "`llm.kv: paged` does not apply to a model without attention: it has no KV caches"
        problems.append(Problem(what, "llm.kv", "leave it out"))
    problems += [*sequence_problems(config, spec), *context_problems(config)]
    problems += sparse_ffn_problems(spec, config, _adapted(spec, options))
    if problems:
        raise ConfigError(f"the config does not fit {opened.where}", problems)
    spec = with_active_blocks(spec, config)
    grid = grid_of(config)
    check_grid(spec, grid, opened.where)
    if options.lora is not None and grid.pipeline > 1:
        check_stages(spec, options.lora, grid)
    if options.kv == "paged" and not rank_spec(spec, grid, grid.engine_of(0)).attentions:
        what = f"`llm.kv: paged` needs a layer with attention in the last of {grid.pipeline} pipeline stages"
        last = max(index for index, layer in enumerate(spec.layers) if layer.mixer in spec.attentions)
        fix = f"use fewer stages, so that the last one has layer {last}, or `llm.kv: linear`"
        raise ConfigError(f"the config does not fit {opened.where}", [Problem(what, "llm.kv", fix)])
    return spec


def _adapted(spec: DecoderSpec, options: LlmOptions) -> frozenset[str]:
    """Return the layers that can take adapters at run time.

    Raises ConfigError for targets that the model does not have.
    """
    return frozenset() if options.lora is None else adapted_layers(spec, options.lora)


def is_packed(config: ModelConfig) -> bool:
    """Whether a model's decoding and prompts share a call."""
    return llm_options(config).batching != "separate"


def sequence_problems(config: ModelConfig, spec: DecoderSpec) -> list[Problem]:
    """Return why ranks cannot share the tokens of a call, if the config sets `parallel.sequence`."""
    if not grid_of(config).sequence:
        return []
    separate = "" if is_packed(config) else "`llm.batching: separate`"
    obstacle = "recurrent layers" if spec.states else separate
    what = f"ranks cannot share the tokens of a call with {obstacle} yet"
    return [Problem(what, "parallel.sequence", "remove it")] if obstacle else []


def context_problems(config: ModelConfig) -> list[Problem]:
    """Return why ranks cannot share the cached positions, if the config sets `parallel.context`."""
    options, ranks, page = llm_options(config), grid_of(config).context, llm_options(config).page_size
    if ranks == 1:
        return []
    obstacles = [
        ("a draft head", options.speculator is not None, "llm.speculator", "leave it out"),
        ("`kv_window: used`", options.kv_window == "used", "llm.kv_window", "use `full`, or `llm.kv: paged`"),
        ("`expanded`", options.latent_attention == "expanded", "llm.latent_attention", "use `absorbed`"),
    ]
    what = "ranks cannot share cached positions (`parallel.context`) with {} yet"
    problems = [Problem(what.format(name), where, fix) for name, is_there, where, fix in obstacles if is_there]
    if page is not None and page % ranks:
        divisors = ", ".join(str(count) for count in range(1, page + 1) if page % count == 0)
        fix = f"use one of {divisors}, or `llm.kv: linear`"
        problems.append(Problem(f"{ranks} ranks cannot share pages of {page} tokens equally", "parallel.context", fix))
    return problems


def llm_options(config: ModelConfig) -> LlmOptions:
    """Return the config's `llm` section, or its defaults."""
    return config.llm or LlmOptions()


def takes_embeddings(model: StagedModel) -> bool:
    """Whether the engine takes embeddings instead of token ids: if the config sets it, or the model takes images."""
    return model.takes_images or llm_options(model.config).inputs == "embeds"


def network_options(model: StagedModel, logits: Literal["all", "last"] | None = None) -> DecoderOptions:
    """Return the options for writing a model's network. logits: overrides the config's setting."""
    options = llm_options(model.config)
    return DecoderOptions(
        dtype_of(model.config.precision),
        options.max_sequence_length,
        has_all_logits=(logits or options.logits) == "all",
        has_embeds_input=takes_embeddings(model),
        has_rope_positions=model.images is not None and model.images.has_grid_positions,
        deepstack=0 if model.images is None else model.images.deepstack,
        has_hidden_states=options.hidden_states,
        has_kv_window=options.kv_window == "used",
        page_tokens=options.page_size,
        has_visible_lengths=model.images is not None and model.images.has_whole_images,
        expands_latent=options.latent_attention == "expanded",
        experts=options.experts,
    )


def decoder_profiles(inputs: Sequence[InputSpec], options: LlmOptions) -> tuple[ResolvedProfile, ...]:
    """Return the profiles: `prefill` and `decode`, or `mixed` and `decode` for a packed network."""
    batch = {"min": 1, "opt": max(1, options.max_batch_size // 2), "max": options.max_batch_size}
    prefill = {"min": 1, "opt": max(1, options.max_prefill_length // 2), "max": options.max_prefill_length}
    decode = {"min": 1, "opt": 1, "max": 1}
    length = options.max_sequence_length
    sizes: dict[Role, Mapping[str, int]] = {"batch": batch}
    if (page := options.page_size) is not None:
        row = {"min": 1, "opt": max(1, length // page // 2), "max": length // page}
        sizes["row_pages"], sizes["kv_window"] = row, {kind: page * row[kind] for kind in row}
        sizes["pages"] = {"min": 1, "opt": batch["opt"] * row["opt"] + 1, "max": most_pages(inputs)}
    else:
        sizes["kv_window"] = {"min": 1, "opt": max(1, length // 2), "max": length}
    if options.lora is not None:
        most = options.lora.max_rank_sum
        sizes["adapter_rank"] = {"min": 0, "opt": max(1, most // 2), "max": most}
    if takes_packed_calls(inputs):
        return tuple(
            _profile(inputs, {**sizes, **sizes_of_call})
            for sizes_of_call in _packed_sizes(batch, prefill, sizes, options)
        )
    return tuple(_profile(inputs, {**sizes, "new_tokens": new}) for new in (prefill, decode))


_Sizes = Mapping[str, int]


def _packed_sizes(
    batch: _Sizes, prefill: _Sizes, sizes: Mapping[Role, _Sizes], options: LlmOptions
) -> Iterator[dict[Role, _Sizes]]:
    """Yield the sizes of mixed steps, with both prompt and decode rows, then of decode-only steps without guesses.

    The latter fix the prompt sizes at 0: TensorRT has no kernels for a range from 0, but removes layers with exactly 0
    rows.
    """
    most = {**prefill, "max": most_prompt_tokens(options)}
    of_row = {"min": 1, "opt": 1, "max": most_row_tokens(options)}
    tokens = {kind: batch[kind] * of_row[kind] + most[kind] for kind in batch}
    logits = {**tokens, "min": 1} if options.logits == "all" else batch
    pages = sizes.get("row_pages", prefill)
    mixed: dict[Role, _Sizes] = {"prompts": batch, "prompt_length": prefill, "prompt_tokens": most, "tokens": tokens}
    mixed["new_tokens"] = of_row
    yield mixed | {"prompt_window": sizes["kv_window"], "prompt_pages": pages, "logit_rows": logits}
    none, one = (dict.fromkeys(batch, size) for size in (0, 1))
    page = options.page_size or 1
    columns = -(-kv_window(1, options.max_sequence_length) // page)
    window, columns_of_none = (dict.fromkeys(batch, size) for size in (columns * page, columns))
    decode: dict[Role, _Sizes] = {"prompts": none, "prompt_length": one, "prompt_tokens": none, "tokens": batch}
    decode["new_tokens"] = one
    yield decode | {"prompt_window": window, "prompt_pages": columns_of_none, "logit_rows": batch}


def most_prompt_tokens(options: LlmOptions) -> int:
    """Return the most prompt tokens of a packed call, including the idle ones that fill its last tile."""
    return options.max_prefill_length + TOKEN_TILE - 1


def most_row_tokens(options: LlmOptions) -> int:
    """Return the most tokens of a decode row in a packed call; more than one requires the logits of all tokens."""
    guesses = max(MOST_ROW_TOKENS, 1 + (options.tree_tokens or 0))
    return min(guesses, options.max_prefill_length) if options.logits == "all" else 1


def _profile(inputs: Sequence[InputSpec], sizes: Mapping[Role, Mapping[str, int]]) -> ResolvedProfile:
    """Return a profile with the given `min`, `opt` and `max` size of each dynamic axis."""
    return {
        spec.name: ProfileShapes(
            **{kind: spec.shape_at({role: sizes[role][kind] for role in sizes}) for kind in ("min", "opt", "max")}
        )
        for spec in inputs
    }


def most_pages(inputs: Sequence[InputSpec]) -> int:
    """Return the most pages that a pool can have: TensorRT indexes a tensor's elements with 31 bits."""
    page_elements = [math.prod(spec.shape[1:]) for spec in inputs if spec.shape and spec.axes[0].role == "pages"]
    return (2**31 - 1) // max(page_elements, default=1)


def decoder_size(opened: OpenedDecoder) -> DecoderSize:
    """Return the model's parameter count, and one rank's weight and cache bytes.

    Weight bytes are for an unquantized network; linear caches count every layer at full length.
    """
    config, kv_cache = opened.config, opened.source.kv_cache
    parameters, elements = (
        sum(math.prod(weight.shape) for weight in model_weights(spec)) for spec in (opened.spec, opened.rank_spec)
    )
    dtype = dtype_of(config.precision)
    cached = dtype if kv_cache is None else dtype_of(kv_cache.format)
    options, own_spec = llm_options(config), opened.rank_spec
    context = context_of(own_spec.context, options.page_size)
    own_bytes = cached.size_bytes(own_spec.cached_elements)  # of a token that this rank caches
    per_token = -(-own_bytes // own_spec.context.count)
    per_slot = own_bytes * context.linear_length(options.max_sequence_length)
    states = opened.rank_spec.state_bytes(dtype)
    return DecoderSize(
        opened.spec.model_type,
        parameters,
        dtype.size_bytes(elements),
        per_token,
        per_slot,
        states,
        vocab_size=opened.spec.vocab_size,
        has_read_only_caches=has_read_only_caches(opened),
    )


def converted_bytes(opened: OpenedDecoder, ranks: int = 1) -> int:
    """Return a lower bound for the bytes of a rank's weights that the bundle stores again as their type changes."""
    dtype = dtype_of(opened.config.precision)
    return dtype.size_bytes(converted_elements(opened.source.checkpoint, dtype.numpy)) // ranks


def has_read_only_caches(opened: OpenedDecoder) -> bool:
    """Whether the network returns new keys and values, which its runtime writes to the caches."""
    is_shared = grid_of(opened.config).context > 1
    return opened.source.kv_cache is not None or llm_options(opened.config).kv == "paged" or is_shared


def engine_bytes(source: DecoderSource, size: DecoderSize, ranks: int = 1) -> int:
    """Return a lower bound for a rank's weight bytes: quantized layers stay as small as in their files."""
    stored = sum(path.stat().st_size for path in source.files) // ranks
    return min(size.weight_bytes, stored) if source.quantized_by else size.weight_bytes
