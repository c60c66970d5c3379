"""An LLM bundle's network, written again from the source that the bundle names."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from trtkit.backends import load_backend
from trtkit.dtypes import dtype_of
from trtkit.engine.decoders import llm_options, open_decoder
from trtkit.engine.embeddings import embedding_table
from trtkit.models.registry import decoder_spec
from trtkit.network.graph import Graph
from trtkit.resolve import resolve
from trtkit.runtime.decoder.embeddings import TokenEmbeddings, bundle_embeddings
from trtkit.sources.digest import digest_model
from trtkit.sources.safetensors_folder import read_json

if TYPE_CHECKING:
    from pathlib import Path

    from trtkit.backends import Backend
    from trtkit.bundle.bundle import Bundle
    from trtkit.config.schema import ModelConfig
    from trtkit.engine.decoders import OpenedDecoder
    from trtkit.models.spec import DecoderSpec


@dataclass(frozen=True, eq=False)
class DecoderNetwork:
    """A network with its weights, which its graph owns.

    max_length: T, tokens that a slot holds. max_prefill_length: new tokens that a row may bring. embeddings: the
    table, where the network takes vectors. has_read_only_caches: whether the network gives new keys and values, which
    its runtime keeps. max_ranks: sum of the ranks of adapters that are resident at once.
    """

    backend: Backend
    graph: Graph
    vocab_size: int
    max_length: int
    max_prefill_length: int
    has_all_logits: bool
    embeddings: TokenEmbeddings | None = None
    has_read_only_caches: bool = False
    max_ranks: int = 0


def decoder_network(
    backend: Backend,
    opened: OpenedDecoder,
    logits: Literal["all", "last"] | None = None,
    embeddings: TokenEmbeddings | None = None,
) -> DecoderNetwork:
    """Return the network that a build writes; `logits` changes what it gives. embeddings: where they are known."""
    weights, options = opened.weights(), llm_options(opened.config)
    if not opened.own.is_first_stage:
        embeddings = None
    elif embeddings is None and opened.takes_embeddings:
        embeddings = TokenEmbeddings(
            embedding_table(opened.spec, opened.all_weights(), dtype_of(opened.config.precision))
        )
    return DecoderNetwork(
        backend,
        opened.write(Graph(backend), weights, logits),
        opened.spec.vocab_size,
        options.max_sequence_length,
        options.max_prefill_length,
        (logits or options.logits) == "all",
        embeddings,
        opened.source.kv_cache is not None or options.kv == "paged",
        0 if options.lora is None else options.lora.max_rank_sum,
    )


def head_network(backend: Backend, opened: OpenedDecoder) -> DecoderNetwork:
    """Return the network of the head that guesses an opened model's tokens."""
    options = llm_options(opened.config)
    return DecoderNetwork(
        backend,
        opened.write_head(Graph(backend)),
        opened.spec.vocab_size,
        options.max_sequence_length,
        options.max_prefill_length,
        has_all_logits=False,
        has_read_only_caches=options.kv == "paged",
    )


def config_network(
    config: ModelConfig, backend: str, logits: Literal["all", "last"] | None = None, quantized: Path | None = None
) -> DecoderNetwork:
    """Return the network of an LLM's config, or of the checkpoint `quantized` made of its source."""
    return decoder_network(load_backend(backend), open_decoder(resolve(config), quantized), logits)


def bundle_network(bundle: Bundle, rank: int = 0, *, has_all_logits: bool = False) -> DecoderNetwork:
    """Return the network of one rank of an LLM bundle; with logits of every token if wanted, whatever its engine gives.

    Raises BundleError if the source is not the one that the bundle was built from.
    """
    opened = _opened(bundle, rank)
    backend = load_backend(bundle.manifest.backend.name)
    return decoder_network(backend, opened, "all" if has_all_logits else None, bundle_embeddings(bundle.path))


def bundle_head_network(bundle: Bundle) -> DecoderNetwork:
    """Return the network of the head in a bundle. Raises BundleError if the source has changed."""
    return head_network(load_backend(bundle.manifest.backend.name), _opened(bundle, 0))


def _opened(bundle: Bundle, rank: int) -> OpenedDecoder:
    """Open what a bundle was built from."""
    config = bundle.manifest.config
    bundle.check_sources({file.sha256 for file in digest_model(config)})
    return open_decoder(resolve(config), bundle.quantized_path, rank)


def bundle_spec(bundle: Bundle) -> DecoderSpec:
    """Return what a language model's bundle computes, of all ranks. Its head may be one that `config.json` ties."""
    path = bundle.path / "model" / "config.json"
    return decoder_spec(read_json(path), str(path))
