"""Comparison of logits, or soft tokens, with the reference's.

Per position and entry on its own scale, and clear choices.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from trtkit.backends import load_backend
from trtkit.builder.decoders import llm_options
from trtkit.jobs.events import Phase
from trtkit.llm.execution import ReferenceDecoder
from trtkit.llm.execution.packed_engine import engine_class
from trtkit.llm.execution.plan import DecoderPlan
from trtkit.llm.execution.pool_size import CacheSize
from trtkit.llm.soft_tokens import pieces
from trtkit.models.parallel import SINGLE, grid_of
from trtkit.reference import to_array
from trtkit.runtime import device as devices
from trtkit.verification.compare import compare, worst
from trtkit.verification.report import Comparison, EngineOutputs, Output
from trtkit.verification.signal import spread
from trtkit.verification.stepper import Stepper

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    import torch

    from trtkit.backends import Backend
    from trtkit.jobs.events import Listener
    from trtkit.llm.execution import DecoderNetwork
    from trtkit.llm.execution.engine import EngineDecoder
    from trtkit.verification.jobs import VerifyRequest
    from trtkit.verification.report import ComparisonLimits
    from trtkit.verification.stepper import Prompt

# A choice is clear if the two best logits differ by this share of the tolerance, times the RMS of all. Of 29 correct
# tiny networks in fp16 and 26 in bf16, none chooses another token at more than 1 % of its clear positions.
CLEAR_SHARE = 0.4
_NEW_TOKENS = 4


def compare_rows(ours: torch.Tensor, theirs: torch.Tensor, limits: ComparisonLimits) -> Comparison:
    """Compare one prompt's rows [S, V]: with a batch axis of 1 added, a position is a slice of axis 1."""
    return compare(to_array(ours.float())[None], to_array(theirs.float())[None], limits.floor)


class RowsCompared:
    """Comparisons of all prompts so far: of logits or soft tokens."""

    def __init__(self, limits: ComparisonLimits) -> None:
        self._limits, self._comparisons, self._spreads = limits, list[Comparison](), list[float]()

    def add(self, ours: torch.Tensor, theirs: torch.Tensor) -> None:
        """Add a prompt's rows [S, V] and the reference's."""
        self._comparisons.append(compare_rows(ours, theirs, self._limits))
        moved = spread(list(to_array(theirs.float())))
        self._spreads += [] if moved is None else [moved]

    def output(self) -> Output:
        """Return the worst comparison, and the smallest difference between positions."""
        compared = worst(self._comparisons)
        spread = max(self._spreads, default=None)
        return Output(**vars(compared), passed=compared.is_within(self._limits), spread=spread)


class ChoicesCompared:
    """Agreement of the most likely token, over all positions so far at which the reference's choice is clear."""

    def __init__(self, limits: ComparisonLimits) -> None:
        self._tolerance, self._equal, self._clear = limits.tolerance, 0, 0

    def add(self, ours: torch.Tensor, theirs: torch.Tensor) -> None:
        """Add a prompt's logits [S, V] and the reference's."""
        best = theirs.topk(2).values
        is_clear = best[:, 0] - best[:, 1] > CLEAR_SHARE * self._tolerance * theirs.square().mean().sqrt()
        self._equal += int((ours.argmax(-1) == theirs.argmax(-1))[is_clear].sum())
        self._clear += int(is_clear.sum())

    @property
    def agreement(self) -> float:
        """Share of clear positions at which both choose the same token; 1 if there are none."""
        return self._equal / self._clear if self._clear else 1.0


def compare_engine(
    request: VerifyRequest,
    write: Callable[[], DecoderNetwork],
    prompts: Iterable[Prompt],
    limits: ComparisonLimits,
    report: Listener,
) -> EngineOutputs | None:
    """Compare the engine's logits with its network's; None without an engine or a GPU.

    Engines of several ranks run only together, as `trtkit generate` runs them, and are not compared here.

    Both get the same tokens: prompts in chunks that the engine accepts, then the reference's own next tokens. write:
    returns the network.
    """
    device = devices.find_device_for(request.backend)
    if not request.engines or device is None or grid_of(request.config) != SINGLE:
        return None
    report(Phase("compare the engine"))
    network, comparisons = write(), []
    engine = _engine(load_backend(request.backend), request, network, device)
    ours, theirs = Stepper(engine), Stepper(ReferenceDecoder(network, 1))
    try:
        for prompt in prompts:
            pairs = _logits(ours, theirs, prompt, engine.max_prefill_length)
            comparisons += [compare_rows(ours, other, limits) for ours, other in pairs]
    finally:
        engine.close()
    compared = worst(comparisons)
    return EngineOutputs(compared.is_within(limits), {"logits": compared})


def _engine(backend: Backend, request: VerifyRequest, network: DecoderNetwork, device: devices.Device) -> EngineDecoder:
    options, file = llm_options(request.config), request.engines[-1]
    plan = DecoderPlan(file, network.inputs, options, network.embeddings, str(file.path))
    return engine_class(plan)(backend, plan, CacheSize(1), device)


def _logits(ours: Stepper, theirs: Stepper, prompt: Prompt, most: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Yield both logits [S, V] of each prompt chunk and of each token after it."""
    ids, soft = prompt
    for stepper in (ours, theirs):
        stepper.reset(1, [soft])
    chunks = [list(ids[part]) for part in pieces(len(ids), most, soft)]
    for _ in range(_NEW_TOKENS):
        for chunk in chunks:
            both = [stepper.step([chunk])[0].cpu() for stepper in (ours, theirs)]
            logits, expected = (rows.reshape(-1, rows.shape[-1]) for rows in both)
            yield logits, expected[-len(logits) :]  # an engine may give those of the last token alone
        chunks = [[int(expected[-1].argmax())]]
