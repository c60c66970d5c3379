"""An LLM bundle's network, written again from the source that the bundle names."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from trtkit.backends import load_backend
from trtkit.engine.decoder_compile import decoder_graph
from trtkit.engine.decoders import checked_spec, llm_options, open_decoder
from trtkit.errors import BundleError
from trtkit.models.weights import find_weights
from trtkit.sources.digest import digest_source

if TYPE_CHECKING:
    from trtkit.backends import Backend
    from trtkit.config.schema import ModelConfig
    from trtkit.engine.bundle import Bundle
    from trtkit.network.graph import Graph


@dataclass(frozen=True, eq=False)
class DecoderNetwork:
    """A network with its weights, which its graph owns. max_prefill_length: new tokens that a row may bring."""

    backend: Backend
    graph: Graph
    vocab_size: int
    max_prefill_length: int
    has_all_logits: bool


def write_network(config: ModelConfig, backend: str) -> DecoderNetwork:
    """Return the network that a build of `config` writes. Raises what reading its source raises."""
    loaded, opened = load_backend(backend), open_decoder(config.source)
    spec, options = checked_spec(config, opened), llm_options(config)
    weights = find_weights(spec, opened.checkpoint, opened.where)
    graph = decoder_graph(loaded, config, spec, weights)
    return DecoderNetwork(loaded, graph, spec.vocab_size, options.max_prefill_length, options.logits == "all")


def bundle_network(bundle: Bundle, *, has_all_logits: bool | None = None) -> DecoderNetwork:
    """Return the network of an LLM bundle; with logits of every token where asked, whatever its engine gives.

    Raises BundleError where the source is not the one that the bundle was built from.
    """
    check_sources(bundle)
    config = bundle.manifest.config
    if has_all_logits:
        options = llm_options(config).model_copy(update={"logits": "all"})
        config = config.model_copy(update={"llm": options})
    return write_network(config, bundle.manifest.backend.name)


def check_sources(bundle: Bundle) -> None:
    """Refuse a bundle whose weights, which stay where they were, are not those it was built from."""
    now = {file.sha256 for file in digest_source(bundle.manifest.config.source)}
    changed = [file.path for file in bundle.manifest.sources if file.sha256 not in now]
    if changed:
        raise BundleError("the source has changed since the bundle was built", changed[0], "build the bundle again")
