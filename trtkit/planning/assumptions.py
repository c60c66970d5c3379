"""What a plan takes for granted, in words."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trtkit.planning.links import GPUS_PER_NODE
from trtkit.planning.memory import RESERVE_BYTES

if TYPE_CHECKING:
    from trtkit.planning.count_network import CountedNetwork
    from trtkit.planning.counts import Mixture
    from trtkit.planning.decoder_model import DecoderModel, Workload
    from trtkit.planning.paged import CopiedPages

_ALWAYS = (
    "times are floors: the published dense rate and bandwidth reached in full, no launch, no transfer from the host",
    "memory is the published GB as 10^9 bytes; "
    f"{RESERVE_BYTES / 2**30:.0f} GiB of it is kept for the CUDA context and TensorRT",
    "activations are results that are alive between layers where nothing is fused: TensorRT needs less",
    "fp32 products run in fp32: trtkit builds without TF32",
)

_LINEAR = (
    "caches are linear and as long as needed; attention computes and reads all of a cache, masked parts too; the "
    "row `reads` has what an engine's attention is given, by `llm.kv_window`"
)


def llm_assumptions(
    model: DecoderModel, work: Workload, mixture: Mixture | None = None, pages: CopiedPages | None = None
) -> list[str]:
    """Return what holds for a plan of an LLM.

    mixture: of which a step reads the chosen experts only. pages: that a step copies; None if caches are linear.
    """
    notes = [
        f"prompts of {work.input_len} tokens are prefilled whole for times, {work.chunk} tokens a step for memory; "
        "all requests start together",
        f"decoding is timed at {work.mean_length} cached tokens, the mean; a slot holds {work.length}",
        _LINEAR if pages is None else _pages_note(work, pages),
        "other formats are arithmetic: engines are quantized as `quantize` in a config or the checkpoint says",
        f"several GPUs: links at their published bandwidth, {GPUS_PER_NODE} GPUs a node and InfiniBand between nodes, "
        "rings with NCCL's constants, nothing overlapped with computing; prompts pass a pipeline in parts, decode "
        "steps as a whole",
        "a budget for weights: all can be streamed, each once a step, at the published bandwidth of the link to the "
        "host, while the GPU computes; the memory that they pass through is not counted",
        *_ALWAYS,
    ]
    if model.active_parameters < model.parameters:
        notes.append(_experts_note(model, mixture))
    if model.quantized:
        notes.append("quantized layers compute in the type of codes and inputs; input factors (AWQ) are not counted")
    if model.kv_dtype.bits == 8:
        notes.append(_quantized_caches_note(model, pages))
    if model.has_windows:
        notes.append("sliding layers cache all tokens, as trtkit's engines do")
    return notes


def _quantized_caches_note(model: DecoderModel, pages: CopiedPages | None) -> str:
    """Say what caches in 8 bits need besides; an engine that reads pages where they are needs less than is counted."""
    room = "8-bit caches also need room for one step's new keys and values"
    if pages is not None and not pages.layers:
        return f"{room}; room for one layer's caches in {model.dtype} is counted too, though attention reads the codes"
    return f"{room}, and are read in {model.dtype} by one layer at a time"


def _pages_note(work: Workload, pages: CopiedPages) -> str:
    """Say what caches in pages take, and which of them a step copies."""
    takes = f"caches are pages of {work.page_tokens} tokens, of which a sequence takes whole ones, and one is nobody's"
    if not pages.layers:
        return f"{takes}; attention reads them where they are"
    layers = "all layers" if pages.share == 1 else f"{pages.layers} layers, {float(pages.share):.0%} of the caches,"
    return (
        f"{takes}; {layers} read, write and read again the pages of each sequence in every step, as if each ran "
        "in a call of its own: the row `reads` has what an engine's attention is given"
    )


def _experts_note(model: DecoderModel, mixture: Mixture | None) -> str:
    """Say which experts a step reads."""
    share = f"{model.active_parameters / model.parameters:.0%} of all weights"
    if mixture is None:
        return f"a step reads all experts, which compute every token; those that one token needs are {share}"
    each = f"a step reads {mixture.top_k} experts for each new token, at most all {mixture.num_experts}"
    return f"{each}; what one token needs is {share}"


def vision_assumptions(network: CountedNetwork) -> list[str]:
    """Return what holds for a plan of a vision network."""
    shapes = "; ".join(f"{name} {list(shape)}" for name, shape in network.shapes.items())
    low, high = network.batches
    known = f"counts hold for batch {low} alone" if low == high else "sizes but the batch are those of `opt`"
    return [
        f"{known} ({shapes} was described)",
        "the memory floor is weights, inputs and outputs once: all layers in one kernel; `unfused` is the other end",
        *_ALWAYS,
    ]
