"""The networks that a language model has in memory while it is awake."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, cast

from trtkit.bundle.bundle import open_bundle
from trtkit.errors import RequestError
from trtkit.llm.encoded import open_encoder
from trtkit.llm.engine import DraftProposer, LookupProposer
from trtkit.llm.execution import ExecutionOptions, engine_device, open_execution
from trtkit.llm.execution.engine import EngineDecoder
from trtkit.llm.images import open_tower
from trtkit.llm.speculator_tokens import speculator_tokens
from trtkit.models.speculators import kind_part
from trtkit.runtime.device import release_memory
from trtkit.runtime.weight_budget import automatic_budget, weight_budget_bytes

if TYPE_CHECKING:
    from collections.abc import Callable

    from trtkit.llm.encoded.encoder import Encoder
    from trtkit.llm.engine.proposers import Proposer
    from trtkit.llm.execution.execution import DecoderExecution
    from trtkit.llm.images.tower import VisionTower
    from trtkit.llm.text_bundle import TextBundle
    from trtkit.runtime.device import Device
    from trtkit.serving_options import ServingOptions


class _KindProposer(Protocol):
    """The `proposer.py` of a kind of draft head.

    PROPOSER: called with an opened model, the number of guesses, and a tree's.
    """

    PROPOSER: Callable[[DecoderExecution, int, int | None], Proposer]


@dataclass(frozen=True, eq=False)
class Networks:
    """The decoder, the vision tower, and the encoder for audio or text. proposer: drafts tokens."""

    execution: DecoderExecution
    tower: VisionTower | None
    encoder: Encoder | None
    proposer: Proposer | None


def open_networks(text: TextBundle, options: ServingOptions) -> Networks:
    """Open a bundle's networks. Raises GenerationError, RequestError or BundleError if they cannot be opened."""
    weight_budget_bytes(text.bundle, options.weight_budget_gib)
    how = ExecutionOptions(
        options.has_cuda_graphs,
        options.needs_all_logits,
        options.cache_gib,
        None if options.weight_budget_gib == "auto" else options.weight_budget_gib,
        has_speculator=_speculator_tokens(text, options) > 0,
        resident_tokens=options.resident_tokens,
        offload=options.offload,
        micro_batch=options.micro_batch,
    )
    execution = open_execution(text.bundle, options.runtime, options.slots, how)
    tower = None if text.images is None else open_tower(text.bundle, options.runtime)
    encoder = None if text.encoded is None else open_encoder(text.bundle, options.runtime)
    proposer = _proposer(text, options, execution)
    if options.weight_budget_gib == "auto" and (device := engine_device(options.runtime)) is not None:
        from trtkit.llm.networks import keep_weights_that_fit

        draft = proposer.execution if isinstance(proposer, DraftProposer) else None
        keep_weights_that_fit(execution, draft, device)
    execution.prepare()
    if isinstance(proposer, DraftProposer):
        proposer.execution.prepare()
    return Networks(execution, tower, encoder, proposer)


def _speculator_tokens(text: TextBundle, options: ServingOptions) -> int:
    """Return how many tokens the bundle's draft head guesses. Raises what `speculator_tokens` does."""
    has_others = options.draft is not None or options.lookup > 0
    return speculator_tokens(text.bundle, options.speculate, has_others=has_others)


def _proposer(text: TextBundle, options: ServingOptions, execution: DecoderExecution) -> Proposer | None:
    """Return what drafts tokens, if anything does."""
    decoder, count = text.bundle.manifest.decoder, _speculator_tokens(text, options)
    if options.lookup < 0 or options.draft_tokens < 1:
        raise RequestError("a negative number of tokens to guess", "lookup", "give 0 or more")
    if options.draft is not None and options.lookup:
        raise RequestError("`draft` and `lookup` cannot be combined", "speculation", "choose one")
    if options.draft is not None:
        return DraftProposer(_draft(Path(options.draft), options, execution), options.draft_tokens)
    if decoder is not None and decoder.speculator is not None and count:
        llm = text.bundle.manifest.config.llm
        tree_tokens = None if llm is None else llm.tree_tokens
        kind = cast("_KindProposer", kind_part(decoder.speculator.model_type, "proposer"))
        return kind.PROPOSER(execution, count, tree_tokens)
    return LookupProposer(options.lookup) if options.lookup else None


def _draft(path: Path, options: ServingOptions, execution: DecoderExecution) -> DecoderExecution:
    """Open the draft model with as many slots. Raises RequestError if its vocabulary differs."""
    draft = open_execution(open_bundle(path), options.runtime, execution.slots)
    if draft.vocab_size != execution.vocab_size:
        vocab_size = execution.vocab_size
        what = f"the draft model's vocabulary has {draft.vocab_size} tokens, the model's has {vocab_size}"
        raise RequestError(what, str(path), "use a draft model with the same tokenizer")
    return draft


def keep_weights_that_fit(execution: DecoderExecution, draft: DecoderExecution | None, device: Device) -> None:
    """Set the weight budget of an open decoder that has not run yet; the reference executor has none.

    Free memory is measured with none of the decoder's streamable weights on the GPU, all of the draft's, and buffers
    for the largest prefill. TensorRT states what execution contexts will take.
    """
    if not isinstance(execution, EngineDecoder):
        return
    decoders = [decoder for decoder in (execution, draft) if isinstance(decoder, EngineDecoder)]
    for decoder in decoders:  # TensorRT may load streamable weights with the first context only
        if decoder.engine.streamable_bytes:
            decoder.engine.stream_weights(0 if decoder is execution else decoder.engine.streamable_bytes)
        decoder.reserve_prompts()
    release_memory()
    free_bytes = device.free_bytes - sum(decoder.engine.pending_context_bytes for decoder in decoders)
    execution.stream_weights(automatic_budget(free_bytes, device.memory_bytes, execution.engine.streamable_bytes))
