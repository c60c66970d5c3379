"""A decoder on the reference executor: the network that its engine was built from, on any machine."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from trtkit.dtypes import DTYPES
from trtkit.llm.execution.adapters import adapter_memory
from trtkit.llm.execution.cached_places import NewTokens
from trtkit.llm.execution.execution import CallCounts, NeuronCounts
from trtkit.llm.execution.packed import PackedCall
from trtkit.llm.execution.paged_cache import open_cache
from trtkit.llm.execution.pool_size import AS_LINEAR, PoolSize
from trtkit.network.decoder import BLOCK_COUNTS, EMBEDS, HIDDEN_STATES, NEXT_HIDDEN_STATES
from trtkit.network.input_spec import (
    DECODE_POSITION_IDS,
    MOST_ROW_TOKENS,
    PROMPT,
    PROMPT_PLACES,
    output_of_prompts,
)
from trtkit.network.layer_file import drop_pages
from trtkit.network.speculators import DRAFT_HIDDEN, NEXT_DRAFT_HIDDEN
from trtkit.reference import Executor, Options
from trtkit.reference.precision import Precision

if TYPE_CHECKING:
    from collections.abc import Mapping

    from trtkit.llm.execution.call import Call
    from trtkit.llm.execution.execution import Draw, PackedCalls, RankExecution
    from trtkit.llm.execution.kv_cache import KvCache
    from trtkit.llm.execution.network import DecoderNetwork
    from trtkit.llm.sequences import Ints
    from trtkit.reference import Rank


class ReferenceDecoder:
    """A RankExecution on torch. Caches are updated in place, as the engine does.

    widen: "fp64" computes nearly exactly, so that logits do not show how tokens were batched. ranks: those of a network
    with collectives. pool: size of paged caches. is_fast, kept_calls: see the executor's Options.
    """

    token_tile = 1

    def __init__(
        self,
        network: DecoderNetwork,
        slots: int,
        widen: str | None = None,
        ranks: Rank | None = None,
        pool: PoolSize = AS_LINEAR,
        *,
        is_fast: bool = False,
        kept_calls: int | None = None,
    ) -> None:
        options = Options(in_place_caches=True, widen=widen, ranks=ranks, is_fast=is_fast, kept_calls=kept_calls)
        self._network, self._options = network, options
        self._loaded: Executor | None = None
        self.load_weights()
        self._names = {spec.name for spec in self._executor.inputs}
        self.hidden = next((s for s in network.inputs if s.name in (HIDDEN_STATES, DRAFT_HIDDEN)), None)
        self._gives_logits = "logits" in self._executor.output_names
        hold = Precision(widen).storage
        self.cache = open_cache(
            network.inputs,
            slots,
            network.max_length,
            lambda spec: hold(DTYPES[spec.dtype]),
            pool=pool,
            context=network.context,
        )
        self._own = self.cache.part(network.inputs)  # without the draft head's
        of_prompts = {output_of_prompts(spec) for spec in (*self._own.specs, *self._own.states) if spec.updated}
        self._outputs_of_decoding = [name for name in self._executor.output_names if name not in of_prompts]
        self.speculator: RankExecution | None = None
        self.next_hidden: torch.Tensor | None = None
        self.adapters = adapter_memory(network.inputs, network.max_ranks, lambda spec: hold(DTYPES[spec.dtype]))
        self.tokens = torch.zeros(slots, dtype=torch.int64)
        counts = (
            NeuronCounts(torch.zeros(3, dtype=torch.int64)) if BLOCK_COUNTS in self._executor.output_names else None
        )
        self.calls = CallCounts(token_multiple=network.token_multiple, neurons=counts)
        self._appends = network.has_read_only_caches
        self.is_asynchronous, self.takes_ids = False, network.embeddings is None
        self.slots, self.max_length = slots, self.cache.max_length
        self.packed: PackedCalls | None = self if PROMPT_PLACES in self._names else None
        most = min(network.max_prefill_length, MOST_ROW_TOKENS if self._own.states else network.max_prefill_length)
        self.row_tokens = most if DECODE_POSITION_IDS in self._names else 1
        self.vocab_size, self.has_all_logits = network.vocab_size, network.has_all_logits
        self.max_prefill_length = network.max_prefill_length
        self.description = f"reference executor on the {network.layers.library} network, CPU"

    @property
    def _executor(self) -> Executor:
        """The compiled network, with its weights in memory."""
        assert self._loaded is not None
        return self._loaded

    def share_cache(self, cache: KvCache) -> None:
        """Share another cache's memory; see RankExecution."""
        self.cache.share(cache)
        self._own = self.cache.part(self._network.inputs)

    def load_weights(self) -> None:
        """Compile the network. Mapped weights are read when they are used; others are repacked for the kernels."""
        if self._loaded is None:
            self._loaded = Executor(self._network.layers, self._options)

    def unload_weights(self) -> None:
        """Free the weights."""
        self._loaded = None
        drop_pages(self._network.layers)

    def forward(self, call: Call, draw: Draw | None = None) -> torch.Tensor:
        """Run new tokens; see DecoderExecution."""
        if self.packed is not None:
            packed = PackedCall.of(call, has_all_logits=self.has_all_logits)
            output = packed.shaped(self.forward_packed(packed, draw), has_all_logits=self.has_all_logits)
            if self.next_hidden is not None:
                self.next_hidden = packed.shaped(self.next_hidden, has_all_logits=True)
            return output
        call = self._placed(call)
        self.cache.advance(call)
        self.cache.begin(call)
        output = self._run(call) if call.runs_together else self._run_groups(call)
        if draw is not None:
            draw(output.view(-1, self.vocab_size), torch.from_numpy(call.slots))
        return output

    def forward_packed(self, packed: PackedCall, draw: Draw | None = None) -> torch.Tensor:
        """Run decoding slots and slots that read prompts in one call; see DecoderExecution."""
        packed = packed.placed(self._placed)
        for call in (packed.decode, packed.prompts):
            self.cache.advance(call)
            self.cache.begin(call)
        logits = self._run_packed(packed)
        if draw is not None:
            draw(logits, torch.from_numpy(packed.decode.slots))
        return logits

    def _run_packed(self, packed: PackedCall) -> torch.Tensor:
        """Return logits [N, V] in fp32, or hidden states [T, D].

        States, and the prompts' cache updates, are stored after the network has run. A slot between decoding slots may
        read a prompt: its states are those of the prompt's row, which is stored last.
        """
        decode, kept = packed.decode, [spec for spec in self._own.specs if spec.updated]
        names = None if len(packed.places) else self._outputs_of_decoding
        outputs = self._executor.run(self.packed_inputs(packed), outputs=names)
        self._count(packed.tokens, packed.used_tokens, outputs)
        states = self._own.states
        if packed.rows:
            self.cache.keep(decode.rows, {spec.name: outputs[spec.updated] for spec in states})
        if self._appends and packed.rows:
            self.cache.append(_places_of(decode), {spec.name: outputs[spec.updated] for spec in kept})
        if len(packed.places):
            new = {spec.name: outputs[output_of_prompts(spec)] for spec in (*kept, *states)}
            self.cache.keep(self._prompt_slots(packed), {spec.name: new.pop(spec.name) for spec in states})
            self.cache.append(packed.new_tokens(), new)
        hidden = outputs.get(NEXT_DRAFT_HIDDEN)
        self.next_hidden = None if hidden is None else hidden[:, 0]
        return outputs["logits"].float() if self._gives_logits else outputs[NEXT_HIDDEN_STATES][:, 0]

    def _count(self, computed: int, used: int, outputs: Mapping[str, torch.Tensor]) -> None:
        self.calls.add(computed, used)
        if self.calls.neurons is not None:
            self.calls.neurons.add(outputs[BLOCK_COUNTS])
            self.calls.neurons.row_bytes = self._executor.rows.read_bytes

    def packed_inputs(self, packed: PackedCall) -> dict[str, Any]:
        """Return every input of a packed network for a call whose tokens have locations."""
        feed: dict[str, Any] = {
            name: value for name, value in packed.feed(self.max_length).items() if name in self._names
        }
        decode, prompts = packed.decode, packed.prompts
        if packed.rows and (decode.ids < 0).any():
            drawn = self.tokens[decode.slots, None].clamp(min=0).numpy()  # negative for a row that failed
            feed["input_ids"][: packed.decoding_tokens] = np.where(decode.ids < 0, drawn, decode.ids).reshape(-1, 1)
        if "key_positions" in self._names:
            window = decode.window(self.max_length) if packed.rows else packed.page_tokens or 1
            feed["key_positions"] = torch.arange(window, dtype=torch.int32)
        if "rope_position_ids" in self._names:
            feed["rope_position_ids"] = packed.rope_position_ids()
        if f"{PROMPT}visible_lengths" in self._names:
            feed[f"{PROMPT}visible_lengths"] = prompts.visible_lengths()
        if self._network.embeddings is not None:
            spec = next(spec for spec in self._network.inputs if spec.name == EMBEDS)
            feed[EMBEDS] = packed.vectors(*(self._network.embeddings.inputs(call, spec) for call in (decode, prompts)))
        if self.hidden is not None and packed.hidden is not None:
            feed[self.hidden.name] = packed.hidden[:, None]
        if self.adapters is not None:
            feed |= self.adapters.view(self.adapters.ranks)
        return feed | self._own.view(decode.rows) | self._own.view_of_prompts(self._prompt_slots(packed))

    def _prompt_slots(self, packed: PackedCall) -> slice:
        return packed.prompt_slots(are_neighbors=self.cache.needs_neighbors)

    def _run_groups(self, call: Call) -> torch.Tensor:
        """Run the groups of a call's rows one after the other; return the output of all."""
        parts = [(rows, self._run(group), self.next_hidden) for rows, group in call.groups()]
        count = len(call.starts)
        if self.next_hidden is not None:
            self.next_hidden = _joined([(rows, hidden) for rows, _, hidden in parts if hidden is not None], count)
        return _joined([(rows, output) for rows, output, _ in parts], count)

    def _run(self, call: Call) -> torch.Tensor:
        """Return a call's logits in fp32, or hidden states."""
        outputs = self._executor.run(self._inputs(call))
        self._count(call.ids.size, int(call.counts.sum()), outputs)
        self.cache.keep(call.rows, {spec.name: outputs[spec.updated] for spec in self.cache.states})
        if self._appends:
            new = {spec.name: outputs[spec.updated] for spec in self._own.specs if spec.updated}
            self.cache.append(_places_of(call), new)
        self.next_hidden = outputs.get(NEXT_DRAFT_HIDDEN)
        return outputs["logits"].float() if self._gives_logits else outputs[NEXT_HIDDEN_STATES]

    def tensors(self, call: Call, names: set[str]) -> dict[str, torch.Tensor]:
        """Run new tokens; return the outputs and the named tensors of the network."""
        return self._executor.run(self.inputs(call), keep=names & self._executor.tensor_names)

    def slots_to_run(self, slots: slice) -> slice:
        """Return `slots`."""
        return slots

    def tokens_to_run(self, tokens: int, _most: int) -> int:
        """Return `tokens`."""
        return tokens

    def prepare(self) -> None:
        """Do nothing: the system allocates memory on first use."""

    def warm_up(self, _draws: object, _guesses: int) -> None:
        """Do nothing: nothing is compiled or captured."""

    def layer_seconds(self, call: Call) -> dict[str, float]:
        """Run new tokens; return the time of each layer, in the order of execution."""
        self.cache.positions[call.rows] = -1  # a timed call need not continue a sequence
        return self._executor.layer_seconds(self.inputs(call))

    def inputs(self, call: Call) -> dict[str, Any]:
        """Return every input of the network for a call; the caches are views."""
        call = self._placed(call)
        if self.packed is not None:
            return self.packed_inputs(PackedCall.of(call, has_all_logits=self.has_all_logits))
        return self._inputs(call)

    def _inputs(self, call: Call) -> dict[str, Any]:
        feed: dict[str, Any] = {name: value for name, value in call.feed().items() if name in self._names}
        if (call.ids < 0).any():
            drawn = self.tokens[call.slots, None].clamp(min=0).numpy()  # negative for a row that failed
            feed["input_ids"] = np.where(call.ids < 0, drawn, call.ids).astype(np.int32)
        if "key_positions" in self._names:
            feed["key_positions"] = torch.arange(call.window(self.max_length), dtype=torch.int32)
        if "rope_position_ids" in self._names:
            feed["rope_position_ids"] = call.rope_position_ids()
        if "visible_lengths" in self._names:
            feed["visible_lengths"] = call.visible_lengths()
        if self._network.embeddings is not None:
            spec = next(spec for spec in self._network.inputs if spec.name == EMBEDS)
            feed[EMBEDS] = self._network.embeddings.inputs(call, spec)
        if self.hidden is not None:
            feed[self.hidden.name] = call.hidden
        if self.adapters is not None:
            feed |= self.adapters.view(self.adapters.ranks)
        return feed | self._own.view(call.rows)

    def _placed(self, call: Call) -> Call:
        call.check(self.slots, self.max_length)
        return self.cache.prepare(call)

    def abort(self) -> None:
        """Do nothing: exchanges between processes end when one of them does."""

    def close(self) -> None:
        """Drop the caches."""
        self.cache.close()
        self._own.close()
        if self.speculator is not None:
            self.speculator.close()


def _places_of(call: Call) -> NewTokens:
    """Return where a call's new tokens are written."""
    table = None if call.pages is None else torch.from_numpy(call.pages.table)
    slots, starts, counts = (torch.from_numpy(array) for array in (call.slots, call.starts, call.counts))
    return NewTokens(slots, starts, counts, table)


def _joined(parts: list[tuple[Ints, torch.Tensor]], count: int) -> torch.Tensor:
    """Return the outputs of parts of the rows as that of all `count` rows."""
    joined = parts[0][1].new_zeros(count, *parts[0][1].shape[1:])
    for rows, output in parts:
        joined[rows] = output
    return joined
