"""Open a language model's bundle, of one rank or of several."""

from __future__ import annotations

from hashlib import sha256
from typing import TYPE_CHECKING

from trtkit.config.llm import LlmOptions
from trtkit.errors import GenerationError, RequestError
from trtkit.llm.execution.single import DEFAULT_EXECUTION, OpenOptions, checked_slots, open_rank
from trtkit.models.spec_file import read_spec
from trtkit.network.rope_tables import counted_length

if TYPE_CHECKING:
    from trtkit.bundle.bundle import Bundle
    from trtkit.bundle.manifest import Manifest
    from trtkit.llm.execution.execution import DecoderExecution
    from trtkit.llm.execution.single import ExecutionOptions
    from trtkit.serving_options import Runtime


def open_execution(
    bundle: Bundle,
    runtime: Runtime = "auto",
    slots: int | None = None,
    how: ExecutionOptions = DEFAULT_EXECUTION,
) -> DecoderExecution:
    """Open an LLM bundle to run it. slots: concurrent sequences, by default the engine's `llm.max_batch_size`.

    A bundle of several ranks runs in as many processes, which this one starts, or which a launcher such as torchrun has
    started; a launched process other than rank 0 serves until rank 0 closes, and exits.

    Raises GenerationError if the bundle is not an LLM's or TensorRT has no GPU, RequestError for more slots than the
    engine has, BundleError if the bundle's files or its source have changed, RankError if a rank fails.
    """
    if bundle.manifest.interface != "tokens":
        what = "the bundle does not hold a language model"
        raise GenerationError(what, str(bundle.path), "give a language model's bundle; `trtkit run` runs other models")
    count = checked_slots(bundle, slots)
    options = OpenOptions(runtime, count, how)
    if how.offload is not None:
        from trtkit.llm.offload.open import open_offloaded

        return _named(open_offloaded(bundle, options), bundle)
    if how.micro_batch is not None:
        raise RequestError("only stages that run in turn have micro-batches", "micro_batch", "set `offload`, too")
    if bundle.manifest.grid.ranks == 1:
        return _named(open_rank(bundle, options), bundle)
    from trtkit.llm.distributed.open import open_distributed

    return _named(open_distributed(bundle, options), bundle)


def cache_model(bundle: Bundle) -> str:
    """Return the identity of a model's caches: weights, precision and rotary tables, but not the engine's sizes."""
    facts = [weights_digest(bundle.manifest), *map(str, rope_lengths(bundle))]
    return sha256("\n".join(facts).encode()).hexdigest()


def weights_digest(manifest: Manifest) -> str:
    """Return a digest of a model's weights and precision."""
    files = sorted({file.sha256 for file in (*manifest.sources, *manifest.quantized)})
    return sha256("\n".join([manifest.config.precision, *files]).encode()).hexdigest()


def rope_lengths(bundle: Bundle) -> list[int]:
    """Return the slot lengths that rotary tables depend on (LongRoPE, dynamic NTK), sorted."""
    length = (bundle.manifest.config.llm or LlmOptions()).max_sequence_length
    ropes = [attention.rope for attention in read_spec(bundle.path).attentions if attention.rope is not None]
    return sorted({counted_length(rope, length) for rope in ropes})


def _named(execution: DecoderExecution, bundle: Bundle) -> DecoderExecution:
    """Return a bundle's execution with the model's identity set on its cache."""
    execution.cache.model = cache_model(bundle)
    return execution
