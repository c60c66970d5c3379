"""Language models that take images or audio: both networks against transformers, sample by sample."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from trtkit.jobs.events import Phase
from trtkit.llm.soft_tokens import pieces
from trtkit.verification.engine_logits import compare_engine
from trtkit.verification.job import corner
from trtkit.verification.logits import LogitsCompared, compare_rows
from trtkit.verification.report import Agreement, Check, Corner, Output, Report
from trtkit.verification.signal import hollow_outputs

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch

    from trtkit.backends import Backend
    from trtkit.config.schema import ModelConfig
    from trtkit.jobs.job import JobContext
    from trtkit.llm.execution import DecoderNetwork
    from trtkit.llm.soft_tokens import SoftTokens
    from trtkit.runtime.text import Tokenizer
    from trtkit.verification.jobs import VerifyRequest
    from trtkit.verification.report import ComparisonLimits
    from trtkit.verification.stepper import Stepper

Media = Any
"""Images or audio, as a family's reference takes them."""
_NEW_TOKENS, _CHUNK = 12, 7
_MIN_AGREEMENT = 0.99


@dataclass(frozen=True, eq=False)
class MediaSample:
    """A prompt with images or audio. ids: with all placeholders. media: as the reference takes them."""

    name: str
    ids: list[int]
    media: Media
    soft: SoftTokens | None


class MediaReference(Protocol):
    """transformers' whole model."""

    description: str

    def logits(self, ids: Sequence[int], media: Media) -> torch.Tensor:
        """Return logits [S, V] of a prompt."""
        ...

    def greedy(self, ids: Sequence[int], media: Media, count: int) -> list[int]:
        """Return `count` most likely tokens after a prompt, whatever ends a text."""
        ...


class MediaVerifier(Protocol):
    """Both networks as the bundle's engines were built from, and transformers' model.

    rounding: the error that comes of what the reference does not round. encoded: what the first network's output is
    called.
    """

    config: ModelConfig
    backend: Backend
    stepper: Stepper
    tokenizer: Tokenizer | None
    limits: ComparisonLimits
    rounding: float
    encoded: str

    @property
    def reference(self) -> MediaReference:
        """transformers' model."""
        ...

    def samples(self, paths: Sequence[str]) -> list[MediaSample]:
        """Return prompts with files, or with what is made up where none are given."""
        ...

    def encode(self, sample: MediaSample) -> tuple[torch.Tensor, torch.Tensor]:
        """Return what the first network makes of a sample, and transformers: [rows, D] each."""
        ...

    def engine_network(self) -> DecoderNetwork:
        """Return the decoder's network exactly as the engine has it: its own kind of logits."""
        ...


def compare_media(verifier: MediaVerifier, request: VerifyRequest, context: JobContext) -> Report:
    """Compare what the first network gives, logits, greedy tokens and, where asked, chunks."""
    limits, samples = verifier.limits, verifier.samples(request.request.inputs)
    context.report(Phase(f"compare {verifier.encoded.replace('_', ' ')} and logits"))
    outputs = {verifier.encoded: _encoded(verifier, samples)}
    outputs["logits"], agreement = _logits(verifier, samples)
    context.report(Phase("compare greedy tokens"))
    answers = [_greedy(verifier, sample) for sample in samples]
    corners = [_chunked(verifier, sample) for sample in samples] if request.request.corners else []
    same = sum(ours == theirs for ours, theirs in answers) / len(answers)
    required = 1.0 if verifier.config.precision == "fp32" and not verifier.rounding else 0.0
    least = 0.0 if verifier.rounding else _MIN_AGREEMENT
    task = Agreement("greedy text", same, required, None, tuple(answers))
    prompts = [(sample.ids, sample.soft) for sample in samples]
    engine = compare_engine(request, verifier.engine_network, prompts, limits, context.report)
    checks: list[Check] = [*outputs.values(), *corners, task, *([] if engine is None else [engine])]
    return Report(
        name=verifier.config.name,
        passed=all(check.passed for check in checks) and agreement >= least,
        precision=verifier.config.precision,
        reference=verifier.reference.description,
        executor=f"trtkit reference executor on both {verifier.backend.name} {verifier.backend.version} networks",
        tolerance=limits.tolerance,
        slice_tolerance=limits.slices,
        slice_floor=limits.floor,
        samples=tuple(sample.name for sample in samples),
        outputs=outputs,
        hollow=hollow_outputs(outputs, limits),
        task=task,
        corners=tuple(corners),
        top_1_agreement=agreement,
        engine=engine,
    )


def prompt_logits(stepper: Stepper, sample: MediaSample, chunk: int | None = None) -> torch.Tensor:
    """Return logits [S, V] of a prompt, prefilled in chunks, or at once as far as a call takes it."""
    import torch

    size = chunk or stepper.most or len(sample.ids)
    stepper.reset(1, sample.soft)
    parts = pieces(len(sample.ids), size, sample.soft)
    return torch.cat([stepper.step([sample.ids[part]])[0] for part in parts])


def _encoded(verifier: MediaVerifier, samples: Sequence[MediaSample]) -> Output:
    compared = LogitsCompared(verifier.limits)
    for sample in (sample for sample in samples if sample.soft is not None):
        compared.add(*verifier.encode(sample))
    return compared.output()


def _logits(verifier: MediaVerifier, samples: Sequence[MediaSample]) -> tuple[Output, float]:
    """Return the worst comparison, and the share of equal top-1 tokens where the best two are clearly apart."""
    compared, hits, clear = LogitsCompared(verifier.limits), 0, 0
    for sample in samples:
        ours = prompt_logits(verifier.stepper, sample)
        theirs = verifier.reference.logits(sample.ids, sample.media)
        compared.add(ours, theirs)
        best = theirs.topk(2).values
        is_clear = best[:, 0] - best[:, 1] > verifier.limits.tolerance * theirs.square().mean().sqrt()
        hits += int((ours.argmax(-1) == theirs.argmax(-1))[is_clear].sum())
        clear += int(is_clear.sum())
    return compared.output(), hits / clear if clear else 1.0


def _greedy(verifier: MediaVerifier, sample: MediaSample) -> tuple[str, str]:
    """Return our answer and transformers', as text where there is a tokenizer."""
    ours = verifier.stepper.greedy(sample.ids, _NEW_TOKENS, soft=sample.soft)
    theirs = verifier.reference.greedy(sample.ids, sample.media, _NEW_TOKENS)
    if verifier.tokenizer is None:
        return " ".join(map(str, ours)), " ".join(map(str, theirs))
    return verifier.tokenizer.decode(ours), verifier.tokenizer.decode(theirs)


def _chunked(verifier: MediaVerifier, sample: MediaSample) -> Corner:
    """Check what serving relies on: a prompt cut anywhere, in an image too, gives what one prefill gives."""
    whole = prompt_logits(verifier.stepper, sample)
    compared = compare_rows(prompt_logits(verifier.stepper, sample, _CHUNK), whole, verifier.limits)
    return corner(f"chunks of {_CHUNK}: {sample.name}", {"inputs_embeds": (1, _CHUNK)}, compared, verifier.limits)
