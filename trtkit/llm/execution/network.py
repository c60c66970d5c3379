"""An LLM bundle's network: read from the bundle, or written again from the source that the bundle names."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from trtkit.backends import load_backend
from trtkit.builder.decoders import has_read_only_caches, llm_options, open_decoder
from trtkit.builder.embeddings import embedding_table
from trtkit.dtypes import dtype_of
from trtkit.llm.execution.embeddings import TokenEmbeddings, bundle_embeddings
from trtkit.models.model import SPECULATOR
from trtkit.models.parallel import grid_of
from trtkit.models.share import WHOLE
from trtkit.network.decoder import EMBEDS
from trtkit.network.graph import Graph
from trtkit.network.input_spec import takes_packed_calls
from trtkit.resolve import resolve
from trtkit.sources.digest import digest_model

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from trtkit.backends import Backend
    from trtkit.builder.decoders import OpenedDecoder
    from trtkit.bundle.bundle import Bundle
    from trtkit.config.schema import ModelConfig
    from trtkit.models.share import Share
    from trtkit.network.input_spec import InputSpec
    from trtkit.network.layer_graph import LayerGraph


@dataclass(frozen=True, eq=False)
class DecoderNetwork:
    """A network with its weights and the facts that its runtime needs. inputs: in the network's order.

    max_length: T, tokens per slot. max_prefill_length: limit on a row's new tokens. embeddings: the table, if the
    network takes vectors. has_read_only_caches: whether the network returns new keys and values, which its runtime
    stores. max_ranks: limit on the ranks of all resident adapters together. token_multiple: see CallCounts. context:
    the share of a sequence's positions in the rank's caches.
    """

    layers: LayerGraph
    inputs: Sequence[InputSpec]
    vocab_size: int
    max_length: int
    max_prefill_length: int
    has_all_logits: bool
    embeddings: TokenEmbeddings | None = None
    has_read_only_caches: bool = False
    max_ranks: int = 0
    token_multiple: int = 1
    context: Share = WHOLE


def decoder_network(
    backend: Backend,
    opened: OpenedDecoder,
    logits: Literal["all", "last"] | None = None,
    embeddings: TokenEmbeddings | None = None,
) -> DecoderNetwork:
    """Return the network that a build writes.

    logits: overrides which logits it outputs. embeddings: if already read.
    """
    weights, options = opened.weights(), llm_options(opened.config)
    if not opened.rank_spec.is_first_stage:
        embeddings = None
    elif embeddings is None and opened.takes_embeddings:
        embeddings = TokenEmbeddings(
            embedding_table(opened.spec, opened.all_weights(), dtype_of(opened.config.precision))
        )
    graph = opened.write(Graph(backend), weights, logits)
    return DecoderNetwork(
        graph.layers(),
        graph.inputs,
        opened.spec.vocab_size,
        options.max_sequence_length,
        options.max_prefill_length,
        (logits or options.logits) == "all" or opened.is_packed,
        embeddings,
        has_read_only_caches(opened),
        0 if options.lora is None else options.lora.max_rank_sum,
        opened.rank_spec.token_share.count,
        grid_of(opened.config).context_share(opened.rank),
    )


def speculator_network(backend: Backend, opened: OpenedDecoder) -> DecoderNetwork:
    """Return the network of an opened model's draft head."""
    options = llm_options(opened.config)
    graph = opened.write_speculator(Graph(backend))
    return DecoderNetwork(
        graph.layers(),
        graph.inputs,
        opened.spec.vocab_size,
        options.max_sequence_length,
        options.max_prefill_length,
        has_all_logits=False,
        has_read_only_caches=options.kv == "paged",
    )


def config_network(
    config: ModelConfig, backend: str, logits: Literal["all", "last"] | None = None, quantized: Path | None = None
) -> DecoderNetwork:
    """Return the network of an LLM's config, or of the checkpoint `quantized` made from its source."""
    return decoder_network(load_backend(backend), open_decoder(resolve(config), quantized), logits)


def bundle_network(bundle: Bundle, rank: int = 0, *, has_all_logits: bool = False) -> DecoderNetwork:
    """Return the network of one rank of an LLM bundle; with all logits if requested, whatever its engine outputs.

    Raises BundleError if its layers have changed, or the source from which it is written again for other logits.
    """
    manifest = bundle.manifest
    layers, options, decoder = None, llm_options(manifest.config), manifest.decoder
    assert decoder is not None
    inputs = [record.spec for record in manifest.stages[-1].networks[rank].inputs]
    gives_all = options.logits == "all" or takes_packed_calls(inputs)  # packed: of the tokens that a call names
    if not has_all_logits or gives_all:
        layers = bundle.layers(rank=rank)
    if layers is None:
        return written_network(bundle, rank, "all" if has_all_logits else None)
    return DecoderNetwork(
        layers,
        inputs,
        decoder.vocab_size,
        options.max_sequence_length,
        options.max_prefill_length,
        gives_all,
        bundle_embeddings(bundle.path) if any(spec.name == EMBEDS for spec in inputs) else None,
        decoder.has_read_only_caches,
        0 if options.lora is None else options.lora.max_rank_sum,
        manifest.grid.token_share(rank).count,
        manifest.grid.context_share(rank),
    )


def bundle_speculator_network(bundle: Bundle) -> DecoderNetwork:
    """Return the network of a bundle's draft head. Raises BundleError if its layers have changed."""
    layers, options, decoder = bundle.layers(SPECULATOR), llm_options(bundle.manifest.config), bundle.manifest.decoder
    assert decoder is not None
    if layers is None:
        return written_speculator_network(bundle)
    return DecoderNetwork(
        layers,
        [record.spec for record in bundle.manifest.stage(SPECULATOR).inputs],
        decoder.vocab_size,
        options.max_sequence_length,
        options.max_prefill_length,
        has_all_logits=False,
        has_read_only_caches=options.kv == "paged",
    )


def written_network(bundle: Bundle, rank: int = 0, logits: Literal["all", "last"] | None = None) -> DecoderNetwork:
    """Return a bundle's network, written again from its source. Raises BundleError if the source has changed."""
    opened, backend = _opened(bundle, rank), load_backend(bundle.manifest.backend.name)
    return decoder_network(backend, opened, logits, bundle_embeddings(bundle.path))


def written_speculator_network(bundle: Bundle) -> DecoderNetwork:
    """Return a draft head's network, written again from its source. Raises BundleError if the source has changed."""
    return speculator_network(load_backend(bundle.manifest.backend.name), _opened(bundle, 0))


def _opened(bundle: Bundle, rank: int) -> OpenedDecoder:
    """Open the source that a bundle was built from."""
    config = bundle.manifest.config
    bundle.check_sources({file.sha256 for file in digest_model(config)})
    return open_decoder(resolve(config), bundle.quantized_path, rank)
