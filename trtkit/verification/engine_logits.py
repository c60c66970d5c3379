"""A decoder's engine on a device against the reference executor: logits of prompts, and of the tokens that follow."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trtkit.backends import load_backend
from trtkit.builder.decoders import llm_options
from trtkit.jobs.events import Phase
from trtkit.llm.execution import ReferenceDecoder
from trtkit.llm.execution.packed_engine import open_engine
from trtkit.llm.execution.plan import DecoderPlan
from trtkit.llm.execution.pool_size import CacheSize
from trtkit.llm.soft_tokens import pieces
from trtkit.models.parallel import SINGLE, grid_of
from trtkit.runtime import device as devices
from trtkit.verification.compare import worst
from trtkit.verification.logits import compare_rows
from trtkit.verification.report import EngineOutputs
from trtkit.verification.stepper import Stepper

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    import torch

    from trtkit.backends import Backend
    from trtkit.jobs.events import Listener
    from trtkit.llm.execution import DecoderNetwork
    from trtkit.llm.execution.engine import EngineDecoder
    from trtkit.llm.soft_tokens import SoftTokens
    from trtkit.verification.jobs import VerifyRequest
    from trtkit.verification.report import ComparisonLimits

    Prompts = Iterable[tuple[Sequence[int], SoftTokens | None]]

_NEW_TOKENS = 4


def compare_engine(
    request: VerifyRequest,
    write: Callable[[], DecoderNetwork],
    prompts: Prompts,
    limits: ComparisonLimits,
    report: Listener,
) -> EngineOutputs | None:
    """Compare the engine's logits with those of its own network; None if there is no engine or no GPU.

    Engines of several ranks run together only, which `trtkit generate` does; they are not compared here.

    Both are given the same tokens: prompts in chunks that the engine takes, then the reference's own next tokens.
    write: returns the network.
    """
    device = devices.find_device_for(request.backend)
    if not request.engines or device is None or grid_of(request.config) != SINGLE:
        return None
    report(Phase("compare the engine"))
    network, comparisons = write(), []
    engine = _engine(load_backend(request.backend), request, network, device)
    ours, theirs = Stepper(engine), Stepper(ReferenceDecoder(network, 1))
    try:
        for ids, soft in prompts:
            pairs = _logits(ours, theirs, ids, soft, engine.max_prefill_length)
            comparisons += [compare_rows(ours, other, limits) for ours, other in pairs]
    finally:
        engine.close()
    compared = worst(comparisons)
    return EngineOutputs(compared.is_within(limits), {"logits": compared})


def _engine(backend: Backend, request: VerifyRequest, network: DecoderNetwork, device: devices.Device) -> EngineDecoder:
    options, file = llm_options(request.config), request.engines[-1]
    plan = DecoderPlan(file, network.inputs, options, network.embeddings, str(file.path))
    return open_engine(backend, plan, CacheSize(1), device)


def _logits(
    ours: Stepper, theirs: Stepper, ids: Sequence[int], soft: SoftTokens | None, most: int
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Yield logits [S, V] of both, of each chunk of a prompt and each token after it."""
    for stepper in (ours, theirs):
        stepper.reset(1, soft)
    chunks = [list(ids[part]) for part in pieces(len(ids), most, soft)]
    for _ in range(_NEW_TOKENS):
        for chunk in chunks:
            both = [stepper.step([chunk])[0].cpu() for stepper in (ours, theirs)]
            logits, expected = (rows.reshape(-1, rows.shape[-1]) for rows in both)
            yield logits, expected[-len(logits) :]  # an engine may give those of the last token alone
        chunks = [[int(expected[-1].argmax())]]
