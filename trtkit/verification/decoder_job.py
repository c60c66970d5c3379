"""The job that verifies a decoder-only LLM: its network, computed by the reference executor, against transformers."""

from __future__ import annotations

import math
from dataclasses import astuple, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from trtkit.backends import load_backend
from trtkit.builder.decoders import llm_options, open_decoder
from trtkit.jobs.events import Phase, Progress, Verdict
from trtkit.llm.execution import Call, CallTree, ReferenceDecoder, decoder_network
from trtkit.llm.execution.network import head_network
from trtkit.llm.execution.packed import PackedCall
from trtkit.llm.execution.pool_size import PoolSize
from trtkit.models.parallel import SINGLE, grid_of
from trtkit.quantization_methods import FORMATS
from trtkit.quantized_matrix import QuantizedMatrix
from trtkit.resolve import resolve
from trtkit.verification.compare import limits_of, worst
from trtkit.verification.decoder_reference import TransformersReference, round_inputs
from trtkit.verification.engine_logits import compare_engine
from trtkit.verification.job import corner
from trtkit.verification.layers import layer_errors
from trtkit.verification.logits import LogitsCompared, compare_rows
from trtkit.verification.perplexity import mean_loss, windows
from trtkit.verification.prompts import Prompt, read_prompts
from trtkit.verification.ranks import RankedDecoder, rank_errors, rank_networks, reference_decoder, single
from trtkit.verification.report import Agreement, Check, Corner, LayerError, Output, PerplexityCheck, Report
from trtkit.verification.signal import hollow_outputs
from trtkit.verification.speculators import HEAD_PAIRS
from trtkit.verification.stepper import Stepper
from trtkit.verification.subject import tolerance_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from trtkit.builder.speculators.opened import OpenedSpeculator
    from trtkit.jobs.events import Listener
    from trtkit.jobs.job import JobContext
    from trtkit.llm.execution import DecoderNetwork
    from trtkit.network.host_array import Array
    from trtkit.sources.decoder_source import DecoderSource
    from trtkit.verification.corners import Shapes
    from trtkit.verification.jobs import VerifyRequest

_NEW_TOKENS = 12
_SLOTS = 3
# Positions whose two best logits lie nearer than this many roundings of each other have no clear answer.
_CLEAR_ROUNDINGS = 4
_MIN_AGREEMENT = 0.99
# Of networks that round what runs through them, of logits and of perplexity. A value that falls between two codes is
# rounded either way and moves all that follows; caches are rounded by the network alone.
_ROUNDED_IN_FP32, ROUNDED_ACTIVATIONS, _ROUNDED_PERPLEXITY = 0.05, 0.3, 0.1
_MAX_PERPLEXITY_CHANGE = {"fp32": 1e-3, "fp16": 1e-2, "bf16": 2e-2}


class DecoderVerifier:
    """An LLM's network in the engine's precision, with logits of every token, and transformers' model."""

    def __init__(self, request: VerifyRequest, report: Listener) -> None:
        self.config = request.config
        report(Phase("read source"))
        self._decoder = open_decoder(resolve(self.config), request.quantized)
        self.backend, self.opened = load_backend(request.backend), self._decoder.source
        report(Phase("write network"))
        self.ranks = None if grid_of(self.config) == SINGLE else rank_networks(self.backend, self._decoder, "all")
        self.network = decoder_network(self.backend, single(self._decoder), "all")
        self.head = self._decoder.head
        head = None if self.head is None else head_network(self.backend, self._decoder)
        self.decoder = ReferenceDecoder(
            self.network, _SLOTS, pool=PoolSize(head=() if head is None else tuple(head.inputs))
        )
        if head is not None:
            self.decoder.head = ReferenceDecoder(head, _SLOTS, pool=PoolSize(model=self.decoder.cache))
        self.stepper = Stepper(self.decoder if self.ranks is None else RankedDecoder(self.ranks, _SLOTS))
        report(Phase("load reference"))
        self.reference = TransformersReference(self.opened, llm_options(self.config).max_sequence_length)
        tolerance, least = tolerance_of(self.config), self._rounding()
        self.rounds_activations = least > 0
        if self.config.verify.max_relative_rms_error is None:
            tolerance = max(tolerance, least)
        self.limits = limits_of(tolerance, self.config.verify.max_slice_error)

    def _rounding(self) -> float:
        """Let the reference round inputs as the network does; return what both may differ by for rounding so."""
        formats = round_inputs(self.reference.model, self.opened)
        if self.opened.kv_cache is not None:
            return ROUNDED_ACTIVATIONS
        if formats and self.config.precision == "fp32":
            return _ROUNDED_IN_FP32
        return max((FORMATS[kind].tolerance for kind in formats), default=0.0)

    @property
    def _gives_all_logits(self) -> bool:
        """Whether the engine gives logits of every token: a packed one, of those that a call names."""
        return self._decoder.is_packed or llm_options(self.config).logits == "all"

    @cached_property
    def engine_network(self) -> DecoderNetwork:
        """The network exactly as the engine of one rank has it: its own kind of logits."""
        if self._gives_all_logits and self.ranks is None:
            return self.network
        return decoder_network(self.backend, self._decoder)

    def head_weights(self, head: OpenedSpeculator) -> dict[str, Array]:
        """Return the weights of the head's network, of which some may be the model's."""
        return head.weights(self._decoder.all_weights() if head.borrowed else {})

    def engine_stepper(self) -> Stepper:
        """Return what steps that network, or those of all ranks."""
        if self._gives_all_logits:
            return self.stepper
        return Stepper(reference_decoder(self.backend, self._decoder, 1))

    def logits(self, prompt: Prompt) -> torch.Tensor:
        """Return logits [S, V] of one prompt, prefilled at once."""
        self.stepper.reset(1)
        return self.stepper.step([prompt.ids])[0]


def rounds_activations(opened: DecoderSource) -> bool:
    """Whether a network of this source quantizes what runs through it: layers' inputs, or caches."""
    if opened.kv_cache is not None:
        return True
    weights = (opened.checkpoint[name] for name in opened.checkpoint) if opened.quantized_by else ()
    return any(isinstance(weight, QuantizedMatrix) and weight.inputs is not None for weight in weights)


def verify(request: VerifyRequest, context: JobContext) -> Report:
    """Compare logits, greedy tokens, slots and, where asked, perplexity and every layer."""
    verifier = DecoderVerifier(request, context.report)
    prompts = read_prompts(request.request.inputs, verifier.opened, llm_options(verifier.config))
    context.report(Phase("compare logits"))
    logits, agreement = _compare_logits(verifier, prompts)
    context.report(Phase("compare greedy tokens"))
    answers = _greedy(verifier, prompts)
    corners = _corners(verifier, prompts, context.report) if request.request.corners else []
    if verifier.ranks is not None:
        corners.append(_ranks_corner(verifier, prompts))
    if verifier.head is not None:
        corners += _head_corners(verifier, prompts, verifier.head)
    perplexity = _perplexity(verifier, Path(request.request.text), context.report) if request.request.text else None
    same = sum(ours == theirs for ours, theirs in answers) / len(answers)
    # Where two tokens are nearly equally likely, the rounding of 16 bits may choose; that of fp32 does not.
    is_exact = verifier.config.precision == "fp32" and not verifier.rounds_activations
    required, least = float(is_exact), 0.0 if verifier.rounds_activations else _MIN_AGREEMENT
    task = Agreement("greedy text", same, required, None, tuple(answers))
    ids = [(prompt.ids, None) for prompt in prompts]
    engine = compare_engine(request, lambda: verifier.engine_network, ids, verifier.limits, context.report)
    optional = (one for one in (perplexity, engine) if one is not None)
    checks: list[Check] = [logits, *corners, task, *optional]
    report = Report(
        name=verifier.config.name,
        passed=all(check.passed for check in checks) and agreement >= least,
        precision=verifier.config.precision,
        reference=verifier.reference.description,
        executor=f"trtkit reference executor on the {verifier.backend.name} {verifier.backend.version} network",
        tolerance=verifier.limits.tolerance,
        slice_tolerance=verifier.limits.slices,
        slice_floor=verifier.limits.floor,
        samples=tuple(prompt.name for prompt in prompts),
        outputs={"logits": logits},
        hollow=hollow_outputs({"logits": logits}, verifier.limits),
        task=task,
        corners=tuple(corners),
        top_1_agreement=agreement,
        perplexity=perplexity,
        engine=engine,
    )
    if request.request.wants_layers(passed=report.passed):
        context.report(Verdict(report))
        report = replace(report, layers=_layers(verifier, prompts[0], context.report))
    return report


def _compare_logits(verifier: DecoderVerifier, prompts: list[Prompt]) -> tuple[Output, float]:
    """Return the worst comparison, and the share of equal top-1 tokens where the best two are clearly apart."""
    compared, hits, clear = LogitsCompared(verifier.limits), 0, 0
    for prompt in prompts:
        ours, theirs = verifier.logits(prompt), verifier.reference.logits(prompt.ids)
        compared.add(ours, theirs)
        best = theirs.topk(2).values
        rounding = verifier.limits.tolerance / 10 * theirs.square().mean().sqrt()
        is_clear = best[:, 0] - best[:, 1] > _CLEAR_ROUNDINGS * rounding
        hits += int((ours.argmax(-1) == theirs.argmax(-1))[is_clear].sum())
        clear += int(is_clear.sum())
    return compared.output(), hits / clear if clear else 1.0


def _greedy(verifier: DecoderVerifier, prompts: list[Prompt]) -> list[tuple[str, str]]:
    """Return greedy answers of the engine's own network and of transformers, as text where there is a tokenizer."""
    stepper, stop = verifier.engine_stepper(), _stop_tokens(verifier.opened.config)
    answers = []
    for prompt in prompts:
        new_tokens = min(_NEW_TOKENS, llm_options(verifier.config).max_sequence_length - len(prompt.ids))
        ours = stepper.greedy(prompt.ids, new_tokens, stop)
        theirs = verifier.reference.greedy(prompt.ids, new_tokens, stop)
        answers.append((prompt.decode(ours), prompt.decode(theirs)))
    return answers


def _corners(verifier: DecoderVerifier, prompts: list[Prompt], report: Listener) -> list[Corner]:
    """Check what serving relies on: chunks give what one prefill gives, slots together what each gives alone."""
    report(Phase("chunks and slots"))
    longest = max(prompts, key=lambda prompt: len(prompt.ids))
    whole = verifier.logits(longest)
    corners = []
    for size in (1, 5):
        verifier.stepper.reset(1)
        parts = (longest.ids[start : start + size] for start in range(0, len(longest.ids), size))
        chunked = torch.cat([verifier.stepper.step([part])[0] for part in parts])
        shapes: Shapes = {"input_ids": (1, size)}
        corners.append(_corner(f"chunks of {size}", shapes, [(chunked, whole)], verifier))
    counts = [max(1, len(longest.ids) // divisor) for divisor in range(1, _SLOTS + 1)]
    verifier.stepper.reset(_SLOTS)
    together = verifier.stepper.step([longest.ids] * _SLOTS, counts)
    rows = [(row[:count], whole[:count]) for row, count in zip(together, counts, strict=True)]
    shapes = {"input_ids": (len(counts), len(longest.ids)), "lengths": tuple(counts)}
    corners.append(_corner("slots of different lengths", shapes, rows, verifier))
    if verifier.decoder.packed is not None:
        pairs = mixed_pairs(verifier.decoder, verifier.reference, longest.ids)
        corners.append(_corner("decoding and prompts in one call", {"input_ids": (len(pairs), 1)}, pairs, verifier))
    return corners


_PIECE = 5


def mixed_pairs(
    model: ReferenceDecoder, reference: TransformersReference, ids: Sequence[int]
) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Return the logits [S, V] of each row of packed calls, and the reference's.

    Slots take turns to read a prompt's next piece; those that have begun decode meanwhile, as if its tokens were drawn,
    every other time with a guess that comes true.
    """
    assert model.packed is not None
    expected, tokens = reference.logits(list(ids)), np.array(ids, np.int64)
    read, pairs = np.zeros(_SLOTS, np.int64), []
    for turn in range(2 * _SLOTS):
        slot = turn % _SLOTS
        decode = np.flatnonzero((read > 0) & (read < len(ids)) & (np.arange(_SLOTS) != slot))
        count = min(_PIECE + turn, len(ids) - int(read[slot]))
        if not count or (turn and not decode.size):
            continue
        rows = np.arange(decode[0], decode[-1] + 1) if decode.size else decode
        longest = int(read[rows].max(initial=0))
        width = max(1, min(1 + turn % 2, model.row_tokens, model.max_length - longest))
        drawn = tokens[np.minimum(read[rows][:, None] + np.arange(width), len(ids) - 1)]
        counts = np.where(np.isin(rows, decode), np.minimum(width, len(ids) - read[rows]), 0)
        decoding = Call(int(rows[0]) if rows.size else 0, drawn, read[rows], counts)
        piece = tokens[None, read[slot] : read[slot] + count]
        at = np.array([slot])
        reading = Call(slot, piece, read[at], np.array([count]), scattered=at)
        logits = model.packed.forward_packed(PackedCall(decoding, reading, np.arange(drawn.size + count)))
        for row, (start, new) in enumerate(zip(read[rows].tolist(), counts.tolist(), strict=True)):
            if new:
                pairs.append((logits[row * width :][:new], expected[start : start + new]))
        pairs.append((logits[drawn.size :], expected[read[slot] : read[slot] + count]))
        read[rows] += counts
        read[slot] += count
    return pairs


def _ranks_corner(verifier: DecoderVerifier, prompts: list[Prompt]) -> Corner:
    """Compare all ranks' logits with those of one rank's network."""
    alone, pairs = Stepper(verifier.decoder), []
    for prompt in prompts:
        alone.reset(1)
        pairs.append((verifier.logits(prompt), alone.step([prompt.ids])[0]))
    grid = grid_of(verifier.config)
    return _corner(f"{grid.ranks} ranks and one", {"tensor, expert, pipeline": tuple(astuple(grid))}, pairs, verifier)


def _head_corners(verifier: DecoderVerifier, prompts: list[Prompt], head: OpenedSpeculator) -> Iterator[Corner]:
    """Compare the logits of the draft head with its reference's, and the model's of guesses in a tree."""
    longest = max(prompts, key=lambda prompt: len(prompt.ids))
    arrays = verifier.head_weights(head)
    shapes: Shapes = {"input_ids": (1, len(longest.ids))}
    pairs = HEAD_PAIRS[head.spec.kind](verifier.decoder, verifier.reference.model, head, arrays, longest.ids)
    yield _corner("guesses of the head", shapes, pairs, verifier)
    if llm_options(verifier.config).tree_tokens is not None:
        pairs = tree_pairs(verifier.decoder, verifier.reference, longest.ids)
        yield _corner("branches of a tree of guesses", {"input_ids": (1, len(pairs))}, pairs, verifier)


def _corner(
    name: str, shapes: Shapes, pairs: Sequence[tuple[torch.Tensor, torch.Tensor]], verifier: DecoderVerifier
) -> Corner:
    compared = worst([compare_rows(ours, whole, verifier.limits) for ours, whole in pairs])
    return corner(name, shapes, compared, verifier.limits)


def _perplexity(verifier: DecoderVerifier, path: Path, report: Listener) -> PerplexityCheck:
    """Compare perplexity per token over windows of a text with transformers'."""
    ids = windows(path, verifier.opened, llm_options(verifier.config))
    ours, theirs = [], []
    for index, window in enumerate(ids):
        report(Progress("perplexity", index, len(ids)))
        ours.append(mean_loss(verifier.logits(Prompt("window", window)), window))
        theirs.append(mean_loss(verifier.reference.logits(window), window))
    mine, reference = (math.exp(sum(values) / len(values)) for values in (ours, theirs))
    change = abs(mine - reference) / reference
    rounded = _ROUNDED_PERPLEXITY if verifier.rounds_activations else 0.0
    allowed = max(_MAX_PERPLEXITY_CHANGE[verifier.config.precision], rounded)
    tokens = sum(len(window) for window in ids)
    return PerplexityCheck(path.name, len(ids), tokens, mine, reference, change, allowed, change <= allowed)


def _layers(verifier: DecoderVerifier, prompt: Prompt, report: Listener) -> tuple[LayerError, ...]:
    """Measure every tensor on one prefill against the network widened; of several ranks, those that all hold."""
    report(Phase("compare layers"))
    count = len(prompt.ids)
    call = Call(0, np.array([prompt.ids]), np.array([0]), np.array([count]))
    if verifier.ranks is not None:
        errors = rank_errors(verifier.ranks, verifier.network, call)
    else:
        errors = layer_errors(verifier.network.layers, verifier.decoder.inputs(call))
    return tuple(replace(error, node=error.layer) for error in errors)


def _stop_tokens(config: Any) -> tuple[int, ...]:
    """Return the end-of-sequence tokens that a config names."""
    tokens = config.get("eos_token_id")
    return tuple(tokens) if isinstance(tokens, list) else () if tokens is None else (int(tokens),)


_BRANCHES = ((0,), (0, 1), (0, 1, 2), (0, 1, 3), (0, 4), (0, 4, 5))
"""Of a tree in depth-first order: the columns of each token's ancestors and its own; 0 is the first token."""
_ENDS = (6, 4, 3, 4, 6, 6)
"""The column after each token's last descendant."""


def tree_pairs(
    model: ReferenceDecoder, reference: TransformersReference, ids: Sequence[int]
) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Return the logits of each token of a tree that follows a prompt's beginning, and the reference's.

    The tree's tokens are the prompt's own, in an order that no branch shares with it.
    """
    count = len(_BRANCHES)
    known = list(ids[: max(1, min(len(ids) // 2, model.max_length - count))])
    start = np.array([len(known) - 1])
    tokens = [known[-1], *(ids[(7 * index + 3) % len(ids)] for index in range(1, count))]
    if len(known) > 1:
        model.forward(Call(0, np.array([known[:-1]]), np.zeros(1, np.int64), start))
    tree = CallTree(np.array([[len(branch) - 1 for branch in _BRANCHES]]), np.array([_ENDS]))
    logits = model.forward(Call(0, np.array([tokens]), start, np.array([count]), tree=tree))[0]
    sequences = [[*known[:-1], *(tokens[column] for column in branch)] for branch in _BRANCHES]
    return [(ours[None], reference.logits(sequence)[-1:]) for ours, sequence in zip(logits, sequences, strict=True)]
