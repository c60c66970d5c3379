"""Choose what runs a bundle: TensorRT where a GPU is, else the reference executor."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from trtkit.backends import load_backend
from trtkit.backends.gpu import list_gpus
from trtkit.engine.decoders import llm_options
from trtkit.errors import GenerationError, RequestError
from trtkit.runtime.decoder.network import bundle_network
from trtkit.runtime.decoder.reference import ReferenceDecoder

if TYPE_CHECKING:
    from trtkit.bundle.bundle import Bundle
    from trtkit.runtime.decoder.call import DecoderExecution

Runtime = Literal["auto", "tensorrt", "reference"]


def open_execution(
    bundle: Bundle, runtime: Runtime = "auto", slots: int | None = None, *, has_cuda_graphs: bool = True
) -> DecoderExecution:
    """Open an LLM bundle to run it. slots: sequences at once, the engine's `llm.max_batch_size` by default.

    has_cuda_graphs: whether an engine's decode steps are replayed; the reference executor has none.

    Raises GenerationError for a bundle of no LLM and for TensorRT without a GPU, RequestError for slots that the
    engine does not have, BundleError where the bundle's files or its source have changed.
    """
    if bundle.manifest.interface != "tokens":
        what = "the bundle does not hold a language model"
        raise GenerationError(what, str(bundle.path), "give a bundle that was built from an `llm` config")
    count = _checked_slots(bundle, slots)
    if runs_on_gpu(runtime):
        from trtkit.runtime.decoder.engine import EngineDecoder

        bundle.check_files()
        return EngineDecoder(load_backend(bundle.manifest.backend.name), bundle, count, has_cuda_graphs=has_cuda_graphs)
    bundle.check_network()
    return ReferenceDecoder(bundle_network(bundle), count)


def _checked_slots(bundle: Bundle, slots: int | None) -> int:
    """Return how many slots to open."""
    limit = llm_options(bundle.manifest.config).max_batch_size
    if slots is None:
        return limit
    if not 1 <= slots <= limit:
        fix = f"use 1 to {limit}, or build with a larger `llm.max_batch_size`"
        raise RequestError(f"{slots} slots asked, the engine has 1 to {limit}", "slots", fix)
    return slots


def runs_on_gpu(runtime: Runtime) -> bool:
    """Whether TensorRT is to run the engine."""
    if runtime == "reference":
        return False
    has_gpu = bool(list_gpus())
    if runtime == "tensorrt" and not has_gpu:
        raise GenerationError("no GPU to run the engine", fix="use `--runtime reference`, which needs none")
    return has_gpu
