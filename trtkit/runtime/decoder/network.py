"""An LLM bundle's network, written again from the source that the bundle names."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from trtkit.backends import load_backend
from trtkit.dtypes import dtype_of
from trtkit.engine.decoder_compile import decoder_graph
from trtkit.engine.decoders import checked_spec, llm_options, open_model_source, takes_embeddings
from trtkit.engine.embeddings import embedding_table
from trtkit.models.weights import find_weights
from trtkit.runtime.decoder.embeddings import TokenEmbeddings, bundle_embeddings
from trtkit.sources.digest import digest_source

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from trtkit.backends import Backend
    from trtkit.bundle.bundle import Bundle
    from trtkit.config.schema import ModelConfig
    from trtkit.models.spec import DecoderSpec
    from trtkit.network.graph import Graph
    from trtkit.quantized_matrix import KvQuantization
    from trtkit.sources.decoder_source import DecoderSource


@dataclass(frozen=True, eq=False)
class DecoderNetwork:
    """A network with its weights, which its graph owns.

    max_prefill_length: new tokens that a row may bring. embeddings: the table, where the network takes vectors.
    kv_cache: how caches are quantized; the network then gives new keys and values, which its runtime keeps.
    """

    backend: Backend
    graph: Graph
    vocab_size: int
    max_prefill_length: int
    has_all_logits: bool
    embeddings: TokenEmbeddings | None = None
    kv_cache: KvQuantization | None = None


@dataclass(frozen=True, eq=False)
class DecoderModel:
    """A decoder's source, opened: what networks of it are written from. weights: by path, read when asked for."""

    config: ModelConfig
    backend: Backend
    source: DecoderSource
    spec: DecoderSpec
    weights: Mapping[str, Any]

    def network(
        self, logits: Literal["all", "last"] | None = None, embeddings: TokenEmbeddings | None = None
    ) -> DecoderNetwork:
        """Return the network that a build writes; `logits` changes what it gives. embeddings: where they are known."""
        options = llm_options(self.config)
        options = options if logits is None else options.model_copy(update={"logits": logits})
        config = self.config.model_copy(update={"llm": options})
        graph = decoder_graph(self.backend, config, (self.spec, self.source), self.weights)
        return DecoderNetwork(
            self.backend,
            graph,
            self.spec.vocab_size,
            options.max_prefill_length,
            options.logits == "all",
            embeddings if embeddings is not None or not takes_embeddings(config) else self._embeddings(),
            self.source.kv_cache,
        )

    def _embeddings(self) -> TokenEmbeddings:
        """Return the table from the source."""
        return TokenEmbeddings(embedding_table(self.spec, self.weights, dtype_of(self.config.precision)))


def open_model(config: ModelConfig, backend: str, quantized: str | Path = "") -> DecoderModel:
    """Open the source of an LLM's config, or the checkpoint `quantized` made of it. Raises what reading raises."""
    source = open_model_source(config, quantized)
    spec = checked_spec(config, source)
    weights = find_weights(spec, source.checkpoint, source.where)
    return DecoderModel(config, load_backend(backend), source, spec, weights)


def bundle_network(bundle: Bundle, *, has_all_logits: bool = False) -> DecoderNetwork:
    """Return the network of an LLM bundle; with logits of every token where asked, whatever its engine gives.

    Raises BundleError where the source is not the one that the bundle was built from.
    """
    bundle.check_sources({file.sha256 for file in digest_source(bundle.manifest.config.source)})
    model = open_model(bundle.manifest.config, bundle.manifest.backend.name, bundle.quantized_path or "")
    return model.network("all" if has_all_logits else None, bundle_embeddings(bundle.path))
