"""A language model and its reference, with comparisons of the kinds of calls that serving makes."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Protocol, cast

import numpy as np

from trtkit.backends import load_backend
from trtkit.builder.decoders import llm_options, open_decoder
from trtkit.jobs.events import Phase
from trtkit.llm.execution import Call, CallTree, ReferenceDecoder, decoder_network
from trtkit.llm.execution.network import speculator_network
from trtkit.llm.execution.packed import PackedCall
from trtkit.llm.execution.pool_size import PoolSize
from trtkit.models.model import StagedModel
from trtkit.models.parallel import SINGLE, grid_of
from trtkit.models.speculators import kind_part
from trtkit.network.decoder import EMBEDS
from trtkit.verification.compare import limits_of, worst
from trtkit.verification.job import corner
from trtkit.verification.logits import compare_rows
from trtkit.verification.ranks import RankedDecoder, rank_networks, reference_decoder, single
from trtkit.verification.report import Neurons
from trtkit.verification.stepper import Stepper
from trtkit.verification.subject import tolerance_of
from trtkit.verification.tokens_inputs import token_inputs

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import torch
    from transformers import PreTrainedModel

    from trtkit.arrays import Array
    from trtkit.builder.speculators import OpenedSpeculator
    from trtkit.jobs.events import Listener
    from trtkit.llm.execution import DecoderNetwork
    from trtkit.verification.corners import Shapes
    from trtkit.verification.jobs import VerifyRequest
    from trtkit.verification.report import Comparison, Corner
    from trtkit.verification.tokens_inputs import TokenSample

    Pairs = Sequence[tuple[torch.Tensor, torch.Tensor]]

_SLOTS = 3
_CHUNKS, _CHUNKS_OF_MEDIA = (1, 5), (5,)
_PIECE = 5


class _KindReference(Protocol):
    """The `reference.py` of a kind of draft head."""

    @staticmethod
    def logit_pairs(
        model: ReferenceDecoder,
        reference: PreTrainedModel,
        opened: OpenedSpeculator,
        arrays: Mapping[str, Array],
        ids: Sequence[int],
    ) -> Pairs:
        """Return logits of a draft head and of its reference after a prompt. arrays: of its network, by path."""


class TokensVerifier:
    """A language model's networks on the reference executor, and transformers' model; for all kinds of inputs.

    network: single-rank, with logits of every token. stepped: runs it, or all ranks' networks, in `stepper`.
    """

    def __init__(self, request: VerifyRequest, report: Listener) -> None:
        self.config = request.config
        report(Phase("read source"))
        model = StagedModel(self.config, "tokens", (), images=request.traits)  # as the command resolved it
        self.opened, self.backend = open_decoder(model, request.quantized), load_backend(request.backend)
        report(Phase("write network"))
        opened, most = self.opened, self.opened.spec.most_new_tokens
        self.ranks = None if grid_of(self.config) == SINGLE else rank_networks(self.backend, opened, "all")
        self.network = decoder_network(self.backend, single(opened), "all")
        speculator = None if opened.speculator is None else speculator_network(self.backend, opened)
        pool = PoolSize(speculator=() if speculator is None else tuple(speculator.inputs))
        self.decoder = ReferenceDecoder(self.network, _SLOTS, pool=pool)
        self._counted = [self.decoder]
        self.stepped: ReferenceDecoder | RankedDecoder = self.decoder
        if speculator is not None:
            self.decoder.speculator = ReferenceDecoder(speculator, _SLOTS, pool=PoolSize(model=self.decoder.cache))
        self.single = Stepper(self.decoder, most)
        self.stepper = self.single
        if self.ranks is not None:
            self.stepped = RankedDecoder(self.ranks, _SLOTS)
            self.stepper = Stepper(self.stepped, most)
        report(Phase("load reference"))
        self.inputs = token_inputs(request, opened, self.backend)
        self.rounding, tolerance = self.inputs.rounding, tolerance_of(self.config)
        if self.config.verify.max_relative_rms_error is None:
            tolerance = max(tolerance, self.rounding)
        self.limits = limits_of(tolerance, self.config.verify.max_slice_error)

    @property
    def _gives_all_logits(self) -> bool:
        """Whether the engine can return logits of every token; a packed one does for the tokens that a call names."""
        return self.opened.is_packed or llm_options(self.config).logits == "all"

    @property
    def is_engine_network(self) -> bool:
        """Whether `network` is the one that a build writes."""
        return self._gives_all_logits and self.ranks is None

    @cached_property
    def engine_network(self) -> DecoderNetwork:
        """The single-rank network exactly as in the engine, with the engine's own kind of logits."""
        if self.is_engine_network:
            return self.network
        return decoder_network(self.backend, self.opened)

    def engine_stepper(self) -> Stepper:
        """Return a stepper of that network, or of all ranks' networks."""
        if self._gives_all_logits:
            return self.stepper
        decoder = reference_decoder(self.backend, self.opened, 1)
        if isinstance(decoder, ReferenceDecoder):
            self._counted.append(decoder)
        return Stepper(decoder, self.stepper.most)

    @property
    def neurons(self) -> Neurons | None:
        """Counts of the neuron blocks that all calls have read so far; None if they read all neurons."""
        values = [decoder.calls.neurons.values() for decoder in self._counted if decoder.calls.neurons is not None]
        return Neurons(*map(sum, zip(*values, strict=True))) if values else None

    @property
    def _tokens(self) -> str:
        """Name of the network's input for new tokens."""
        return "input_ids" if self.network.embeddings is None else EMBEDS

    def chunks(self, sample: TokenSample, whole: torch.Tensor) -> Iterator[Corner]:
        """Compare a prompt read in chunks, cut at arbitrary places, with its logits [S, V] from a single prefill."""
        for size in _CHUNKS if sample.soft is None else _CHUNKS_OF_MEDIA:
            pairs = [(self.stepper.read([sample.prompt], size)[0], whole)]
            title = f"chunks of {size}" if sample.soft is None else f"chunks of {size}: {sample.name}"
            yield self._corner(title, {self._tokens: (1, size)}, pairs)

    def slots(self, samples: Sequence[TokenSample]) -> Corner:
        """Compare prompts of different lengths that are read in the same calls with each of them alone."""
        longest = sorted(samples, key=lambda sample: -len(sample.ids))
        prompts, counts = [], []
        for slot in range(_SLOTS):
            ids, soft = longest[slot % len(longest)].prompt
            count = max(1, len(ids) // (slot + 1))
            counts.append(count if soft is None else soft.whole(0, count))
            prompts.append((ids[: counts[slot]], soft))
        alone = [self.stepper.read([prompt])[0] for prompt in prompts]
        pairs = list(zip(self.stepper.read(prompts), alone, strict=True))
        shapes: Shapes = {self._tokens: (_SLOTS, max(counts)), "lengths": tuple(counts)}
        return self._corner("slots of different lengths", shapes, pairs)

    def mixed(self, samples: Sequence[TokenSample]) -> Iterator[Corner]:
        """Compare a packed network's calls in which some slots decode and others read prompts with the reference."""
        cut_anywhere = [sample for sample in samples if sample.soft is None or sample.soft.ends is None]
        if self.stepped.packed is None or not cut_anywhere:
            return
        longest = max(cut_anywhere, key=lambda sample: len(sample.ids))
        pairs = _mixed_pairs(self.stepped, longest, self.inputs.reference.logits(longest.ids, longest.media))
        yield self._corner("decoding and prompts in one call", {self._tokens: (len(pairs), 1)}, pairs)

    def of_ranks(self, comparisons: list[Comparison]) -> Corner:
        """Compare all ranks' logits with those of the single-rank network."""
        grid = grid_of(self.config)
        shapes: Shapes = {"tensor, expert, pipeline": (grid.tensor, grid.expert, grid.pipeline)}
        return corner(f"{grid.ranks} ranks and one", shapes, worst(comparisons), self.limits)

    def of_speculator(self, opened: OpenedSpeculator, ids: Sequence[int]) -> Iterator[Corner]:
        """Compare the draft head's logits, and the model's logits for a tree of draft tokens, with the references'."""
        arrays = opened.weights(self.opened.all_weights() if opened.borrowed else {})
        kind = cast("_KindReference", kind_part(opened.spec.kind, "reference"))
        pairs = kind.logit_pairs(self.decoder, self.inputs.reference.model, opened, arrays, ids)
        yield self._corner("guesses of the head", {"input_ids": (1, len(ids))}, pairs)
        if llm_options(self.config).tree_tokens is not None:
            pairs = self._tree_pairs(ids)
            yield self._corner("branches of a tree of guesses", {"input_ids": (1, len(pairs))}, pairs)

    def _corner(self, name: str, shapes: Shapes, pairs: Pairs) -> Corner:
        compared = worst([compare_rows(ours, theirs, self.limits) for ours, theirs in pairs])
        return corner(name, shapes, compared, self.limits)

    def _tree_pairs(self, ids: Sequence[int]) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """Return the logits of each token of a tree that follows the start of a prompt, and the reference's.

        The tree's tokens are the prompt's own, in an order that no branch shares with it.
        """
        count = len(_BRANCHES)
        known = list(ids[: max(1, min(len(ids) // 2, self.decoder.max_length - count))])
        start = np.array([len(known) - 1])
        tokens = [known[-1], *(ids[(7 * index + 3) % len(ids)] for index in range(1, count))]
        if len(known) > 1:
            self.decoder.forward(Call(0, np.array([known[:-1]]), np.zeros(1, np.int64), start))
        tree = CallTree(np.array([[len(branch) - 1 for branch in _BRANCHES]]), np.array([_ENDS]))
        logits = self.decoder.forward(Call(0, np.array([tokens]), start, np.array([count]), tree=tree))[0]
        sequences = [[*known[:-1], *(tokens[column] for column in branch)] for branch in _BRANCHES]
        expected = [self.inputs.reference.logits(sequence)[-1:] for sequence in sequences]
        return [(ours[None], theirs) for ours, theirs in zip(logits, expected, strict=True)]


_BRANCHES = ((0,), (0, 1), (0, 1, 2), (0, 1, 3), (0, 4), (0, 4, 5))
"""A tree in depth-first order: the columns of each token's ancestors and its own; column 0 is the first token."""
_ENDS = (6, 4, 3, 4, 6, 6)
"""The column after each token's last descendant."""


def _mixed_pairs(
    model: ReferenceDecoder | RankedDecoder, sample: TokenSample, expected: torch.Tensor
) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Return the logits [S, V] of each row of packed calls, and the `expected` ones [S', V] of the whole prompt.

    Slots take turns to read a prompt's next chunk; meanwhile those that have started decode as if its tokens were
    drawn, every other time with a draft token that is accepted.
    """
    assert model.packed is not None
    ids, tokens = sample.ids, np.array(sample.ids, np.int64)
    soft = {} if sample.soft is None else dict.fromkeys(range(_SLOTS), sample.soft)
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
        decoding = Call(int(rows[0]) if rows.size else 0, drawn, read[rows], counts, soft)
        piece = tokens[None, read[slot] : read[slot] + count]
        at = np.array([slot])
        reading = Call(slot, piece, read[at], np.array([count]), soft, scattered=at)
        logits = model.packed.forward_packed(PackedCall(decoding, reading, np.arange(drawn.size + count)))
        for row, (start, new) in enumerate(zip(read[rows].tolist(), counts.tolist(), strict=True)):
            if new:
                pairs.append((logits[row * width :][:new], expected[start : start + new]))
        pairs.append((logits[drawn.size :], expected[read[slot] : read[slot] + count]))
        read[rows] += counts
        read[slot] += count
    return pairs
