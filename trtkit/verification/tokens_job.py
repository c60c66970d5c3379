"""The verification job of language models, for all inputs: the reference executor compared with transformers."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from trtkit.builder.decoders import llm_options
from trtkit.jobs.events import Phase, Progress, Verdict
from trtkit.llm.execution import Call
from trtkit.llm.soft_tokens import pieces
from trtkit.verification.bundle_networks import with_networks
from trtkit.verification.layers import layer_errors
from trtkit.verification.logits import ChoicesCompared, RowsCompared, compare_engine, compare_rows
from trtkit.verification.perplexity import mean_loss, windows
from trtkit.verification.ranks import rank_errors
from trtkit.verification.report import Agreement, Check, PerplexityCheck, Report
from trtkit.verification.signal import hollow_outputs
from trtkit.verification.tokens_inputs import NEW_TOKENS
from trtkit.verification.tokens_verifier import TokensVerifier

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trtkit.jobs.events import Listener
    from trtkit.jobs.job import JobContext
    from trtkit.network.layer_graph import LayerGraph
    from trtkit.verification.jobs import VerifyRequest
    from trtkit.verification.report import Corner, LayerError, Output
    from trtkit.verification.tokens_inputs import TokenSample

_MIN_AGREEMENT = 0.99
# Tolerance of networks that round activations.
_ROUNDED_PERPLEXITY = 0.1
_MAX_PERPLEXITY_CHANGE = {"fp32": 1e-3, "fp16": 1e-2, "bf16": 2e-2}


def verify(request: VerifyRequest, context: JobContext) -> Report:
    """Compare a model with its reference, then, for a bundle, its own networks with the verified ones."""
    report, decoder = _verify(request, context)
    return with_networks(report, request.bundle, context, decoder)


def _verify(request: VerifyRequest, context: JobContext) -> tuple[Report, LayerGraph | None]:
    """Compare outputs, greedy tokens and kinds of calls and, if requested, perplexity and every layer.

    The returned layers are those that a build writes for the decoder; None if they are not the verified ones.
    """
    verifier, settings, report = TokensVerifier(request, context.report), request.request, context.report
    samples = verifier.inputs.samples(settings.inputs)
    compared = _compare_prompts(verifier, samples, report, has_corners=settings.corners)
    task = _greedy(verifier, samples, report)
    corners = [*compared.corners, *_calls(verifier, samples, report, has_corners=settings.corners)]
    perplexity = _perplexity(verifier, Path(settings.text), report) if settings.text else None
    prompts = [sample.prompt for sample in samples]
    engine = compare_engine(request, lambda: verifier.engine_network, prompts, verifier.limits, report)
    optional = (one for one in (perplexity, engine) if one is not None)
    checks: list[Check] = [*compared.outputs.values(), *corners, task, *optional]
    networks = f"{'both' if verifier.inputs.encoded else 'the'} {verifier.backend.name} {verifier.backend.version}"
    least = 0.0 if verifier.rounding else _MIN_AGREEMENT
    result = Report(
        name=verifier.config.name,
        passed=all(check.passed for check in checks) and compared.agreement >= least,
        precision=verifier.config.precision,
        reference=verifier.inputs.reference.description,
        executor=f"trtkit reference executor on {networks} network{'s' if verifier.inputs.encoded else ''}",
        tolerance=verifier.limits.tolerance,
        slice_tolerance=verifier.limits.slices,
        slice_floor=verifier.limits.floor,
        samples=tuple(sample.name for sample in samples),
        outputs=compared.outputs,
        hollow=hollow_outputs(compared.outputs, verifier.limits),
        task=task,
        corners=tuple(corners),
        top_1_agreement=compared.agreement,
        perplexity=perplexity,
        engine=engine,
        neurons=verifier.neurons,
    )
    if settings.wants_layers(passed=result.passed):
        report(Verdict(result))
        result = replace(result, layers=_layers(verifier, samples[0], report))
    return result, verifier.network.layers if verifier.is_engine_network else None


@dataclass(frozen=True)
class _PromptsCompared:
    """Comparisons of the preceding network and of prompts' logits: prefilled at once, in chunks, and on a single rank.

    agreement: of clear choices.
    """

    outputs: dict[str, Output]
    agreement: float
    corners: list[Corner]


def _compare_prompts(
    verifier: TokensVerifier, samples: Sequence[TokenSample], report: Listener, *, has_corners: bool
) -> _PromptsCompared:
    """Compare each prompt, prefilled at once, with the reference and, if requested, with itself in chunks."""
    inputs, ranks = verifier.inputs, []
    phase = f"compare {inputs.encoded.replace('_', ' ')} and logits" if inputs.encoded else "compare logits"
    report(Phase(phase))
    encoded, logits, choices = (
        RowsCompared(verifier.limits),
        RowsCompared(verifier.limits),
        ChoicesCompared(verifier.limits),
    )
    plain = [sample for sample in samples if sample.soft is None]
    chunked = [sample for sample in samples if sample.soft is not None]
    chunked += [max(plain, key=lambda sample: len(sample.ids))] if plain else []
    corners: list[Corner] = []
    for index, sample in enumerate(samples):
        report(Progress(phase, index, len(samples)))
        if sample.soft is not None:
            encoded.add(*inputs.encode(sample))
        (ours,), theirs = verifier.stepper.read([sample.prompt]), inputs.reference.logits(sample.ids, sample.media)
        logits.add(ours, theirs)
        choices.add(ours, theirs)
        corners += verifier.chunks(sample, ours) if has_corners and sample in chunked else []
        if verifier.ranks is not None:
            ranks.append(compare_rows(ours, verifier.single.read([sample.prompt])[0], verifier.limits))
    corners += [verifier.of_ranks(ranks)] if ranks else []
    outputs = {inputs.encoded: encoded.output()} if inputs.encoded else {}
    return _PromptsCompared(outputs | {"logits": logits.output()}, choices.agreement, corners)


def _calls(
    verifier: TokensVerifier, samples: Sequence[TokenSample], report: Listener, *, has_corners: bool
) -> list[Corner]:
    """Check what serving relies on.

    Slots that share calls match each one alone, and draft tokens match the draft head's.
    """
    report(Phase("compare calls"))
    corners = [verifier.slots(samples), *verifier.mixed(samples)] if has_corners else []
    if verifier.opened.speculator is not None:
        longest = max(samples, key=lambda sample: len(sample.ids))
        corners += verifier.of_speculator(verifier.opened.speculator, longest.ids)
    return corners


def _greedy(verifier: TokensVerifier, samples: Sequence[TokenSample], report: Listener) -> Agreement:
    """Compare the greedy answers of the engine's own network with transformers', as text if there is a tokenizer."""
    report(Phase("compare greedy tokens"))
    stepper, stop, answers = verifier.engine_stepper(), verifier.inputs.stop, []
    for index, sample in enumerate(samples):
        report(Progress("compare greedy tokens", index, len(samples)))
        count = min(NEW_TOKENS, llm_options(verifier.config).max_sequence_length - len(sample.ids))
        ours = stepper.greedy(sample.ids, count, stop, sample.soft)
        theirs = verifier.inputs.reference.greedy(sample.ids, count, stop, sample.media)
        answers.append((sample.decode(ours), sample.decode(theirs)))
    same = sum(ours == theirs for ours, theirs in answers) / len(answers)
    # If two tokens are nearly equally likely, 16-bit rounding may decide between them; fp32 rounding does not.
    is_exact = verifier.config.precision == "fp32" and not verifier.rounding
    return Agreement("greedy text", same, float(is_exact), None, tuple(answers))


def _perplexity(verifier: TokensVerifier, path: Path, report: Listener) -> PerplexityCheck:
    """Compare the perplexity per token over windows of a text with transformers'."""
    ids = windows(path, verifier.opened.source, llm_options(verifier.config))
    size = None if verifier.neurons is None else 1  # a whole window would read all neurons
    ours, theirs = [], []
    for index, window in enumerate(ids):
        report(Progress("perplexity", index, len(ids)))
        ours.append(mean_loss(verifier.stepper.read([(window, None)], size)[0], window))
        theirs.append(mean_loss(verifier.inputs.reference.logits(window), window))
    mine, reference = (math.exp(sum(values) / len(values)) for values in (ours, theirs))
    change = abs(mine - reference) / reference
    rounded = _ROUNDED_PERPLEXITY if verifier.rounding else 0.0
    allowed = max(_MAX_PERPLEXITY_CHANGE[verifier.config.precision], rounded)
    tokens = sum(len(window) for window in ids)
    return PerplexityCheck(path.name, len(ids), tokens, mine, reference, change, allowed, change <= allowed)


def _layers(verifier: TokensVerifier, sample: TokenSample, report: Listener) -> tuple[LayerError, ...]:
    """Measure every tensor of one prefill against the widened network; with several ranks, those that all hold."""
    report(Phase("compare layers"))
    first = next(pieces(len(sample.ids), verifier.stepper.most or len(sample.ids), sample.soft))
    ids, soft = sample.ids[first], {} if sample.soft is None else {0: sample.soft}
    call = Call(0, np.array([ids]), np.array([0]), np.array([len(ids)]), soft)
    verifier.decoder.forward(call)  # what an encoder gave is in the caches then
    if verifier.ranks is not None:
        errors = rank_errors(verifier.ranks, verifier.network, call)
    else:
        errors = layer_errors(verifier.network.layers, verifier.decoder.inputs(call))
    return tuple(replace(error, node=error.layer) for error in errors)
