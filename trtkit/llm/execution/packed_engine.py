"""A packed decoder on TensorRT: steps without prompts as CUDA graphs, mixed steps on a profile of their own."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch.nn.functional import pad

from trtkit.builder.decoders import most_prompt_tokens, most_row_tokens
from trtkit.llm.cache import PageCopies
from trtkit.llm.execution.call import Call, CallPages
from trtkit.llm.execution.engine import EngineDecoder
from trtkit.llm.execution.packed import PackedCall
from trtkit.llm.execution.plan import dtype_of
from trtkit.llm.execution.step import PromptSizes
from trtkit.network.decoder import EMBEDS, NEXT_HIDDEN_STATES
from trtkit.network.input_spec import (
    ADAPTER_IDS,
    DECODE_POSITION_IDS,
    LOGIT_INDEX,
    PROMPT,
    TOKEN_TILE,
    kv_window,
    output_of_prompts,
    takes_packed_calls,
)
from trtkit.network.speculators import NEXT_DRAFT_HIDDEN
from trtkit.runtime.device import to_device, write

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from trtkit.llm.execution.execution import Draw
    from trtkit.llm.execution.plan import DecoderPlan
    from trtkit.llm.execution.step import StreamStep
    from trtkit.llm.sequences import Ints
    from trtkit.network.input_spec import InputSpec, Role

_BY_TOKEN = ("input_ids", "position_ids", ADAPTER_IDS)
"""Inputs by token: the device computes those of decoding rows, which come first; the prompts' follow."""
_BY_ROW = ("write_indices", "kv_lengths", "token_counts", "branch_ends", DECODE_POSITION_IDS)
"""Inputs of decoding rows, computed on the device if each row has one token."""
_CONSTANT = ("key_positions", f"{PROMPT}key_positions")


class PackedEngineDecoder(EngineDecoder):
    """An EngineDecoder of a packed network.

    A mixed step has at least one decoding row and one row that reads a prompt, possibly idle ones. Steps that check
    guesses are mixed; without prompts, they are captured.
    """

    token_tile = TOKEN_TILE

    def _note_calls(self, plan: DecoderPlan) -> None:
        self._most_tokens, self.packed = most_prompt_tokens(plan.options), self
        has_row_tokens = any(spec.name == DECODE_POSITION_IDS for spec in plan.inputs)
        self.row_tokens = most_row_tokens(plan.options) if has_row_tokens else 1

    def forward(self, call: Call, draw: Draw | None = None) -> torch.Tensor:
        """Run new tokens; see DecoderExecution. Prompts that are too long for one call are split."""
        call.check(self.slots, self.max_length)
        parts = list(_parts(call.counts, self.max_prefill_length)) if call.reads_prompts else [slice(None)]
        outputs, hidden = [], list[torch.Tensor]()
        for rows in parts:
            part = replace(call.with_rows(rows), first_slot=call.first_slot + (rows.start or 0))
            packed = PackedCall.of(part, has_all_logits=self.has_all_logits)
            logits = packed.shaped(self.forward_packed(packed, draw), has_all_logits=self.has_all_logits)
            outputs.append(logits if len(parts) == 1 else logits.clone())  # the next call's take their place
            if self.next_hidden is not None:
                hidden.append(packed.shaped(self.next_hidden, has_all_logits=True))
                hidden[-1] = hidden[-1] if len(parts) == 1 else hidden[-1].clone()
        self.next_hidden = None if not hidden else torch.cat(hidden) if len(parts) > 1 else hidden[0]
        return outputs[0] if len(parts) == 1 else torch.cat(outputs)

    def forward_packed(self, packed: PackedCall, draw: Draw | None = None) -> torch.Tensor:
        """Run decoding slots and slots that read prompts in one call; see DecoderExecution."""
        self._stream.wait_for_current()  # which may read the last call's logits, or write what this one reads
        packed, is_joined = packed.placed(self._placed), False
        filled, is_mixed = packed, bool(packed.prompts.counts.any())
        if is_mixed or packed.decode.ids.shape[1] > 1:
            filled = self._filled(packed)
            self.calls.add(filled.tokens, filled.used_tokens)
            self._copy_mixed(filled)
            self._run_mixed(filled)
        else:
            decode, is_joined = replace(packed.decode, hidden=packed.hidden), not packed.decode.runs_together
            (self._run_groups if is_joined else self._run)(decode, draw)
        self._stream.hold_current()
        self.next_hidden = self._hidden_of(NEXT_DRAFT_HIDDEN, packed, filled, is_joined=is_joined)
        hidden = self._hidden_of(NEXT_HIDDEN_STATES, packed, filled, is_joined=is_joined)
        if hidden is not None:
            return hidden
        wanted = packed.logit_index
        count = len(wanted) if is_mixed else packed.decoding_tokens
        logits = self._outputs.of(self._outputs.main, count, 1, is_joined=is_joined)
        assert logits is not None
        return logits if count == len(wanted) else logits[to_device(wanted, logits.device)]

    def _hidden_of(self, name: str, packed: PackedCall, filled: PackedCall, *, is_joined: bool) -> torch.Tensor | None:
        """Return an output of all tokens [T, D] of a call that ran as `filled`; None if there is no such output."""
        output = self._outputs.of(name, filled.tokens, 1, is_joined=is_joined)
        first = filled.decoding_tokens - packed.decoding_tokens  # after an idle row
        return None if output is None else output.flatten(0, 1)[first : first + packed.tokens]

    def _run_mixed(self, packed: PackedCall) -> None:
        """Enqueue a mixed step whose inputs are set."""
        step = self._mixed_step(packed)
        if packed.places.size:
            self._launch_mixed(packed, step)
        else:
            self._replay(step)

    def layer_seconds(self, call: Call) -> dict[str, float]:
        """Run new tokens without a CUDA graph; return the time of each of the engine's layers in order."""
        if not call.reads_prompts:
            return super().layer_seconds(call)
        call.check(self.slots, self.max_length)
        call = self.cache.prepare(call)
        self.cache.positions[call.slots] = -1  # what is timed need not go on from anything
        packed = self._filled(PackedCall.of(call, has_all_logits=self.has_all_logits))
        step = self._mixed_step(packed)
        self._copy_mixed(packed)
        return self._context(step).layer_seconds(partial(self._launch_mixed, packed, step))

    def reserve(self, tokens: int) -> None:  # noqa: ARG002
        """Allocate for the largest call, once."""
        if self._room:
            return
        super().reserve(self.slots * self.row_tokens)
        self._numbers = self._stream.empty((max(self.slots, self.max_length),), torch.int32)
        write(self._stream, self._numbers, torch.arange(len(self._numbers), dtype=torch.int32))
        if (name := f"{PROMPT}key_positions") in self._inputs:
            self._stream.run(partial(self._inputs[name].copy_, self._numbers[: self.max_length]))
        sizes = {spec: spec.size_of("key_value_heads") * spec.size_of("head_dim") for spec in self._written}
        self._new_of_prompts = {
            output_of_prompts(spec): self._stream.empty((self._most_tokens * size,), dtype_of(spec))
            for spec, size in sizes.items()
        }
        self._new_states_of_prompts = {
            output_of_prompts(spec): self._stream.empty((self.slots, *spec.shape[1:]), dtype_of(spec))
            for spec in self.cache.states
        }
        self._new_of_prompts |= self._new_states_of_prompts
        most = self._most_sizes
        self._outputs.reserve(most["tokens"], most["logit_rows"], is_joined=self.cache.page_tokens is not None)

    @property
    def _most_sizes(self) -> dict[Role, int]:
        """The largest size of each dynamic axis."""
        tokens, page = self.slots * self.row_tokens + self._most_tokens, self.cache.page_tokens or self.max_length
        most: dict[Role, int] = {"batch": self.slots, "tokens": tokens, "prompt_tokens": self._most_tokens}
        most |= {"prompts": self.slots, "prompt_length": self.max_prefill_length}
        most["new_tokens"] = self.row_tokens
        most |= {"kv_window": self.max_length, "prompt_window": self.max_length}
        pages = -(-self.max_length // page)
        return most | {
            "row_pages": pages,
            "prompt_pages": pages,
            "logit_rows": tokens if self.has_all_logits else self.slots,
        }

    def _buffer(self, spec: InputSpec) -> torch.Tensor:
        return self._stream.empty((math.prod(spec.shape_at(self._most_sizes)),), dtype_of(spec))

    def _placed(self, call: Call) -> Call:
        """Return a call with the location of its rows' tokens."""
        call.check(self.slots, self.max_length)
        call = self.cache.prepare(call)
        self.cache.advance(call)
        self.cache.begin(call)
        return call

    def _filled(self, packed: PackedCall) -> PackedCall:
        """Return a mixed call with at least one row of each kind, filled with idle tokens up to whole tiles.

        Without prompts it requests all tokens' logits in order, so that its CUDA graph suits any guesses.
        """
        if not packed.places.size:
            index = np.arange(packed.decoding_tokens)
            packed = replace(packed, prompts=self._idle_prompt(packed.decode), logit_index=index)
        if not packed.rows:
            row, prompts = int(packed.prompts.counts.argmax()), packed.prompts
            start, none = prompts.starts[row : row + 1], np.zeros(1, np.int64)
            pages = None if prompts.pages is None else prompts.pages.of(np.array([row]), start)
            idle = Call(int(prompts.slots[row]), none[:, None], start, none, pages=pages)
            hidden = None if packed.hidden is None else pad(packed.hidden, (0, 0, 1, 0))
            packed = replace(packed, decode=idle, logit_index=packed.logit_index + 1, hidden=hidden)
        if not packed.logit_index.size:  # no prompt is complete; the network gives logits of one token at least
            packed = replace(packed, logit_index=np.zeros(1, np.int64))
        missing = -packed.tokens % self.token_tile
        if not packed.places.size:
            missing = missing or self.token_tile  # the row of prompts has a token
        return replace(packed, idle=min(missing, self._most_tokens - len(packed.places)))

    def _idle_prompt(self, decode: Call) -> Call:
        """Return a row without tokens next to the decoding rows."""
        none, at, pages = np.zeros(1, np.int64), np.array([decode.first_slot]), None
        if decode.pages is not None:
            columns = -(-kv_window(1, self.max_length) // decode.pages.page_tokens)
            pages = CallPages(np.zeros((1, columns), np.int32), decode.pages.page_tokens, PageCopies([], []))
        return Call(decode.first_slot, none[:, None], none, none, pages=pages, scattered=at)

    def _step(self, call: Call, draw: Draw | None = None) -> StreamStep:
        page = self.cache.page_tokens or 1
        pages = -(-kv_window(1, self.max_length) // page)
        return replace(super()._step(call, draw), prompts=PromptSizes(pages * page, pages))

    def _mixed_step(self, packed: PackedCall) -> StreamStep:
        window, (rows, length) = packed.prompt_window(self.max_length), packed.prompts.ids.shape
        sizes = PromptSizes(
            window,
            window // (self.cache.page_tokens or window),
            self._prompt_slots(packed).start if self.cache.needs_neighbors else 0,
            rows,
            length,
            len(packed.places) + packed.idle,
            len(packed.logit_index),
        )
        return replace(super()._step(packed.decode), prompts=sizes, reads_prompts=bool(packed.places.size))

    def _prompt_slots(self, packed: PackedCall) -> slice:
        return packed.prompt_slots(are_neighbors=self.cache.needs_neighbors)

    def _copy_mixed(self, packed: PackedCall) -> None:
        """Enqueue the copies of a mixed call's inputs, except those that the device computes from rows."""
        on_device = packed.decode.ids.shape[1] == 1
        by_token = dict.fromkeys(_BY_TOKEN, 1)
        if self._table is not None and not packed.decode.has_vectors:
            by_token[EMBEDS] = self._embeds.size_of("hidden_size")
        feed = self._mixed_feed(packed)
        for name, value in feed.items():
            if on_device and name in _BY_ROW:
                continue
            start = packed.rows * by_token.get(name, 0) if on_device else 0
            values = value.reshape(-1)[start:]
            write(self._stream, self._inputs[name][start : start + values.numel()], values)
        rows = packed.decode.step_rows()
        write(self._stream, self._rows[: len(rows)], rows)

    def _mixed_feed(self, packed: PackedCall) -> Mapping[str, torch.Tensor]:
        names = self._inputs.keys() - set(_CONSTANT)
        feed = {name: torch.from_numpy(value) for name, value in packed.feed(self.max_length).items() if name in names}
        if "rope_position_ids" in names:
            feed["rope_position_ids"] = torch.from_numpy(packed.rope_position_ids())
        if f"{PROMPT}visible_lengths" in names:
            feed[f"{PROMPT}visible_lengths"] = torch.from_numpy(packed.prompts.visible_lengths())
        if self._embeddings is not None:
            parts = (self._embeddings.inputs(call, self._embeds) for call in (packed.decode, packed.prompts))
            feed[EMBEDS] = packed.vectors(*parts)
        if self.hidden is not None and packed.hidden is not None:
            feed[self.hidden.name] = pad(packed.hidden, (0, 0, 0, packed.tokens - len(packed.hidden)))
        return feed

    def _launch_mixed(self, packed: PackedCall, step: StreamStep) -> None:
        """Enqueue a mixed step."""
        self._prepare(step)
        if step.size == 1:
            self._stream.run(partial(super()._unpack, step))
        self._enqueue(step)
        self._stream.run(partial(self._append_prompts, packed))
        slots = self._prompt_slots(packed)  # one of them may lie between slots that decode: its own states come last
        states = {spec.name: self._new_states_of_prompts[output_of_prompts(spec)] for spec in self.cache.states}
        self.cache.keep(slots, {name: new[: slots.stop - slots.start] for name, new in states.items()})

    def _append_prompts(self, packed: PackedCall) -> None:
        """Append new keys and values of prompts to each slot."""
        count, new = len(packed.places), {}
        for spec in self._written:
            heads, size = spec.size_of("key_value_heads"), spec.size_of("head_dim")
            flat = self._new_of_prompts[output_of_prompts(spec)][: count * heads * size]
            new[spec.name] = flat.view(count, heads, 1, size)
        self.cache.append(packed.new_tokens(self.tokens.device), new)

    def _unpack(self, step: StreamStep) -> None:
        super()._unpack(step)
        if LOGIT_INDEX in self._inputs:
            self._inputs[LOGIT_INDEX][: step.rows].copy_(self._numbers[: step.rows])


def engine_class(plan: DecoderPlan) -> type[EngineDecoder]:
    """Return the class that runs a decoder's engine: packed, or with a call for each kind."""
    return PackedEngineDecoder if takes_packed_calls(plan.inputs) else EngineDecoder


def _parts(counts: Ints, most: int) -> Iterator[slice]:
    """Yield consecutive rows of at most `most` tokens together, or single rows."""
    start, tokens = 0, 0
    for row, count in enumerate(counts.tolist()):
        if row > start and tokens + count > most:
            yield slice(start, row)
            start, tokens = row, 0
        tokens += count
    yield slice(start, len(counts))
