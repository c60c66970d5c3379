"""A decoder-only LLM's source, spec, sizes and profiles, as its config asks."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trtkit.config.schema import LlmOptions, ModelConfig
from trtkit.dtypes import dtype_of
from trtkit.engine.plan_file import Profiles, ShapeBounds
from trtkit.engine.vision_language import takes_images
from trtkit.errors import ConfigError, Problem
from trtkit.models.registry import decoder_spec
from trtkit.models.rope import original_length
from trtkit.models.weights import with_stored_head
from trtkit.network.decoder import DecoderOptions
from trtkit.sources import decoder_source, package_file

if TYPE_CHECKING:
    from trtkit.config.schema import Source
    from trtkit.models.spec import DecoderSpec
    from trtkit.quantized_matrix import KvQuantization
    from trtkit.sources.decoder_source import DecoderSource

Json = dict[str, Any]


def open_model_source(config: ModelConfig, quantized: str | Path = "") -> DecoderSource:
    """Open the model that a config's network is written from. quantized: the checkpoint made of it, where one was.

    Raises ConfigError where layers are to stay as stored in what is no GGUF file.
    """
    if quantized:
        return decoder_source.open_hf_folder(Path(quantized))
    keeps = config.quantize is not None and config.quantize.keeps_stored
    if keeps and config.source.gguf is None:
        what = "`as_stored` is for GGUF files; checkpoints of other kinds that are quantized stay so by themselves"
        raise ConfigError("the config does not fit its source", [Problem(what, "quantize.method", "remove `quantize`")])
    return open_decoder(config.source, keep_quantized=keeps)


def open_decoder(source: Source, *, keep_quantized: bool = False) -> DecoderSource:
    """Open the config, weights and tokenizer of a decoder-only LLM. keep_quantized: layers of GGUF files stay so."""
    if source.gguf is not None:
        path = package_file.resolve(source.gguf, source.requires)
        return decoder_source.open_gguf(path, keep_quantized=keep_quantized)
    if source.trtllm is not None:
        return decoder_source.open_trtllm(package_file.resolve(source.trtllm))
    assert source.hf is not None
    return decoder_source.open_hf_folder(package_file.resolve(source.hf))


def opened_spec(opened: DecoderSource) -> DecoderSpec:
    """Return a source's spec, with the head that its checkpoint holds. Raises SourceError, ProblemsError."""
    return with_stored_head(decoder_spec(opened.config, opened.where), opened.checkpoint)


def head_note(spec: DecoderSpec, opened: DecoderSource) -> str:
    """Say that a stored head is used although the config ties it; empty if it does not."""
    if spec.head.is_tied or not decoder_spec(opened.config, opened.where).head.is_tied:
        return ""
    return f"the stored `{spec.names['lm_head']}.weight` is used, since it differs from the tied embedding"


def rope_note(spec: DecoderSpec, options: LlmOptions) -> str:
    """Say where positions are turned otherwise than transformers turns those of short sequences; empty elsewhere.

    LongRoPE has factors for short and for long sequences. An engine has one of both, since keys in a cache cannot be
    turned again when a sequence grows.
    """
    ropes = [layer.rope for layer in spec.layers if layer.rope is not None and layer.rope.scaling == "longrope"]
    if not ropes:
        return ""
    original, length = original_length(ropes[0]), options.max_sequence_length
    if length <= original:
        return ""
    short = f"transformers takes the short ones up to {original} tokens"
    return f"long factors at every length; {short}: `llm.max_sequence_length={original}` builds with those"


def checked_spec(config: ModelConfig, opened: DecoderSource) -> DecoderSpec:
    """Return the model's spec. Raises ConfigError for options that the model or the method does not allow."""
    spec = opened_spec(opened)
    options, limit = llm_options(config), spec.max_position_embeddings
    problems = []
    if limit and options.max_sequence_length > limit:
        what = f"{options.max_sequence_length} is above the model's `max_position_embeddings`, {limit}"
        problems.append(Problem(what, "llm.max_sequence_length", f"lower it to {limit} or less"))
    if config.profiles:
        fix = "set `llm.max_batch_size`, `llm.max_sequence_length` and `llm.max_prefill_length`"
        problems.append(Problem("an LLM's profiles follow from `llm`", "profiles", fix))
    meaningless = {"keep_fp32": bool(config.keep_fp32), "io_types": config.io_types != "model"}
    for key in (key for key, is_set in meaningless.items() if is_set):
        problems.append(Problem("has no meaning for a network written in its own precision", key, "remove it"))
    if problems:
        raise ConfigError(f"the config does not fit {opened.where}", problems)
    return spec


def llm_options(config: ModelConfig) -> LlmOptions:
    """Return the config's `llm` section or its defaults."""
    return config.llm or LlmOptions()


def takes_embeddings(config: ModelConfig) -> bool:
    """Whether the engine takes vectors in place of ids: asked for, or because the model takes images."""
    return llm_options(config).inputs == "embeds" or takes_images(config)


def network_options(config: ModelConfig) -> DecoderOptions:
    """Return how the network is to be written."""
    options = llm_options(config)
    return DecoderOptions(
        dtype_of(config.precision),
        options.max_sequence_length,
        has_all_logits=options.logits == "all",
        has_embeds_input=takes_embeddings(config),
        has_hidden_states=options.hidden_states,
    )


def decoder_profiles(inputs: dict[str, tuple[int, ...]], options: LlmOptions) -> Profiles:
    """Return the profiles `prefill` and `decode` for inputs whose -1 axes are the batch, then the new tokens."""
    batch = {"min": 1, "opt": max(1, options.max_batch_size // 2), "max": options.max_batch_size}
    prefill = {"min": 1, "opt": max(1, options.max_prefill_length // 2), "max": options.max_prefill_length}
    decode = {"min": 1, "opt": 1, "max": 1}
    return tuple(
        {
            name: ShapeBounds(**{kind: _filled(shape, batch[kind], new[kind]) for kind in batch})
            for name, shape in inputs.items()
        }
        for new in (prefill, decode)
    )


@dataclass(frozen=True)
class DecoderSize:
    """What a model weighs. Bytes are of the engine's precision; KV of one slot is at the engine's full length."""

    parameters: int
    weight_bytes: int
    kv_bytes_per_token: int
    kv_bytes_per_slot: int


def decoder_size(
    spec: DecoderSpec, parameters: int, config: ModelConfig, kv_cache: KvQuantization | None = None
) -> DecoderSize:
    """Return parameter count, weight bytes and KV-cache bytes (linear caches: every layer at full length).

    Weight bytes are those of an unquantized network.
    """
    dtype, attention = dtype_of(config.precision), spec.attention
    per_layer = 2 * attention.num_key_value_heads * attention.head_dim
    cached = dtype if kv_cache is None else dtype_of(kv_cache.format)
    per_token = cached.size_bytes(per_layer * len(spec.layers))
    per_slot = per_token * llm_options(config).max_sequence_length
    return DecoderSize(parameters, dtype.size_bytes(parameters), per_token, per_slot)


def _filled(shape: tuple[int, ...], batch: int, new: int) -> tuple[int, ...]:
    """Return a shape with its dynamic axes filled in."""
    sizes = iter((batch, new))
    return tuple(next(sizes) if size < 0 else size for size in shape)
