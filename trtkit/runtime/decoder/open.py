"""Choose what runs a bundle: TensorRT where a GPU is, else the reference executor."""

from __future__ import annotations

from hashlib import sha256
from typing import TYPE_CHECKING, Literal

from trtkit.backends import load_backend
from trtkit.engine.decoders import llm_options
from trtkit.errors import GenerationError, RequestError
from trtkit.runtime import device as devices
from trtkit.runtime.decoder.network import bundle_network
from trtkit.runtime.decoder.reference import ReferenceDecoder

if TYPE_CHECKING:
    from trtkit.bundle.bundle import Bundle
    from trtkit.runtime.decoder.call import DecoderExecution
    from trtkit.runtime.device import Device

Runtime = Literal["auto", "tensorrt", "reference"]


def open_execution(
    bundle: Bundle,
    runtime: Runtime = "auto",
    slots: int | None = None,
    *,
    has_cuda_graphs: bool = True,
    needs_all_logits: bool = False,
) -> DecoderExecution:
    """Open an LLM bundle to run it. slots: sequences at once, the engine's `llm.max_batch_size` by default.

    has_cuda_graphs: whether an engine's decode steps are replayed; the reference executor has none.
    needs_all_logits: open the reference executor where the engine gives the last token's logits only.

    Raises GenerationError for a bundle of no LLM and for TensorRT without a GPU, RequestError for slots that the
    engine does not have, BundleError where the bundle's files or its source have changed.
    """
    if bundle.manifest.interface != "tokens":
        what = "the bundle does not hold a language model"
        raise GenerationError(what, str(bundle.path), "give a bundle that was built from an `llm` config")
    count = _checked_slots(bundle, slots)
    if needs_all_logits and llm_options(bundle.manifest.config).logits != "all":
        if runtime == "tensorrt":
            what = "the engine outputs logits of the last token only"
            fix = "build with `--set llm.logits=all`, or use `--runtime reference`"
            raise GenerationError(what, str(bundle.path), fix)
        return _named(ReferenceDecoder(bundle_network(bundle, has_all_logits=True), count), bundle)
    device = engine_device(runtime)
    if device is not None:
        from trtkit.runtime.decoder.engine import DecoderPlan, EngineDecoder

        bundle.check_files()
        backend = load_backend(bundle.manifest.backend.name)
        plan = DecoderPlan.of(bundle)
        return _named(EngineDecoder(backend, plan, count, device, has_cuda_graphs=has_cuda_graphs), bundle)
    bundle.check_network()
    return _named(ReferenceDecoder(bundle_network(bundle), count), bundle)


def _named(execution: DecoderExecution, bundle: Bundle) -> DecoderExecution:
    """Return a bundle's execution, its cache named after weights and precision, not after the engine's sizes."""
    manifest = bundle.manifest
    files = sorted({file.sha256 for file in (*manifest.sources, *manifest.quantized)})
    execution.cache.model = sha256("\n".join([manifest.config.precision, *files]).encode()).hexdigest()
    return execution


def _checked_slots(bundle: Bundle, slots: int | None) -> int:
    """Return how many slots to open."""
    limit = llm_options(bundle.manifest.config).max_batch_size
    if slots is None:
        return limit
    if not 1 <= slots <= limit:
        fix = f"use 1 to {limit}, or build with a larger `llm.max_batch_size`"
        raise RequestError(f"{slots} slots requested; the engine takes 1 to {limit}", "slots", fix)
    return slots


def engine_device(runtime: Runtime) -> Device | None:
    """Return where TensorRT is to run the engine, None if the reference executor is to compute.

    Raises GenerationError if TensorRT is requested and there is no GPU.
    """
    device = None if runtime == "reference" else devices.find_device()
    if runtime == "tensorrt" and device is None:
        raise GenerationError("no GPU to run the engine", fix="use `--runtime reference`, which needs none")
    return device
