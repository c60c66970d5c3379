"""The interfaces that every runtime of a decoder-only LLM implements."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from trtkit.llm.cache.transfers import CacheLayout, Copy

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch

    from trtkit.llm.execution.adapters import AdapterMemory, Matrices
    from trtkit.llm.execution.call import Call
    from trtkit.llm.execution.host_blocks import CacheBlocks
    from trtkit.llm.execution.kv_cache import KvCache
    from trtkit.llm.execution.packed import PackedCall
    from trtkit.llm.execution.saved import CacheForm, SavedSequence
    from trtkit.llm.sequences import Ints
    from trtkit.network.input_spec import InputSpec


class Draw(Protocol):
    """Draws a step's tokens on the network's device, without the host, so that a CUDA graph can hold both."""

    def __call__(self, logits: torch.Tensor, slots: torch.Tensor) -> None:
        """Draw the tokens of slots [R] from logits [R, V] into the decoder's `tokens`, all on the network's device."""
        ...


class SequenceCache(CacheLayout, Protocol):
    """Operations on cached sequences between calls. model: digest of the model that computes them."""

    model: str

    def carry_out(self, copies: Sequence[Copy]) -> None:
        """Carry out a batch's copies within the caches, in order."""
        ...

    def tell(self, slot: int, pages: Sequence[int]) -> None:
        """Record the pages that hold a slot's tokens; they are allocated elsewhere."""
        ...

    def set_pages(self, changes: Ints) -> None:
        """Apply changes of page tables: slots, indices in their rows, and pages, [N, 3]."""
        ...

    def move(self, slots: Ints, sources: Ints, targets: Ints) -> None:
        """Copy one cached token within each slot: slots [R], source and target positions [R]."""
        ...

    def mark(self, rows: slice) -> None:
        """Save the recurrent states of consecutive slots, for `rewind`."""
        ...

    def rewind(self, slots: Sequence[int]) -> None:
        """Restore the recurrent states of slots to those saved by `mark`."""
        ...

    def form(self, tokens: int) -> CacheForm:
        """Return the layout of a saved sequence of `tokens` tokens."""
        ...

    def save(self, slot: int, count: int) -> SavedSequence:
        """Copy the first `count` tokens of a slot to the host."""
        ...

    def load(self, slot: int, saved: SavedSequence) -> None:
        """Load a saved sequence into a slot. Raises ExecutionError for what `check` refuses."""
        ...

    def blocks(self, tokens: int) -> CacheBlocks | None:
        """Return what copies blocks of `tokens` tokens to and from the host; None if slots hold more than tokens."""
        ...

    def check(self, saved: SavedSequence) -> None:
        """Raise ExecutionError if a sequence is of another model or other caches, is too long, or lacks bytes."""
        ...

    def close(self) -> None:
        """Free the memory."""
        ...


class AdapterSlots(Protocol):
    """Memory for the low-rank matrices of resident adapters. most: limit on the ranks of all adapters together."""

    most: int

    @property
    def dtype(self) -> torch.dtype:
        """Data type of the matrices."""
        ...

    def write(self, rows: Sequence[int], adapter: int, matrices: Matrices) -> None:
        """Write an adapter into `rows`. matrices: a [r, in] and b [r, out] by layer, of at most `len(rows)` ranks."""
        ...

    def erase(self, rows: Sequence[int]) -> None:
        """Clear `rows`."""
        ...


class NeuronCounts:
    """Counts of blocks of neurons that steps have activated, read, and missed: active but not read.

    totals: int64 [3] on the network's device, where counts are added up so that no step waits for the host. row_bytes:
    bytes of neurons' rows that the reference executor has read, except rows that it keeps in memory.
    """

    def __init__(self, totals: torch.Tensor) -> None:
        self._totals = totals
        self.row_bytes = 0

    def add(self, counts: torch.Tensor) -> None:
        """Add a call's `block_counts` [layers, 2]: active blocks and blocks read, per layer."""
        active, read = counts.long().unbind(1)
        missed = (active - read).clamp(min=0)
        for index, new in enumerate((active, read, missed)):
            self._totals[index] += new.sum()

    def reset(self) -> None:
        """Reset all counts."""
        self._totals.zero_()

    def values(self) -> tuple[int, int, int]:
        """Return the numbers of active, read and missed blocks. Waits for the device."""
        active, read, missed = self._totals.tolist()
        return active, read, missed


@dataclass
class CallCounts:
    """Counts of network_calls, and of computed_tokens in them, of which padded_tokens are idle.

    token_multiple: the network pads the tokens of a call to a multiple of it. neurons: of a network that reads active
    neurons only.
    """

    network_calls: int = 0
    computed_tokens: int = 0
    padded_tokens: int = 0
    token_multiple: int = 1
    neurons: NeuronCounts | None = None

    def add(self, computed: int, used: int) -> None:
        """Count a call."""
        computed += -computed % self.token_multiple
        self.network_calls += 1
        self.computed_tokens += computed
        self.padded_tokens += computed - used


class PackedCalls(Protocol):
    """Calls of a decoder whose network is packed."""

    @property
    def token_tile(self) -> int:
        """Calls with prompts compute a multiple of this many tokens, the last of which may be idle; 1 if none are."""
        ...

    @property
    def row_tokens(self) -> int:
        """Limit on new tokens of a decoding row: its last token and guesses."""
        ...

    def forward_packed(self, packed: PackedCall, draw: Draw | None = None) -> torch.Tensor:
        """Decode slots and read prompts of others in one call; return fp32 logits [N, V] of the requested tokens.

        A rank outside the last pipeline stage returns hidden states [T, D] of all tokens.
        draw: follows a step without prompts and guesses, whose logits are those of its rows in order. See
        `forward`.
        """
        ...


class DecoderExecution(Protocol):
    """A decoder's network with KV caches of `slots` sequences.

    max_length: T, tokens per slot. max_prefill_length: limit on a row's new tokens in one call. is_asynchronous:
    whether `forward` returns before the result is computed. takes_ids: whether the network reads token ids itself, so
    that the host need not know them. calls: counts of calls. tokens: [slots] int64, on the network's device, the token
    that each slot drew last, read for ids of -1. description: what computes, for people.
    """

    tokens: torch.Tensor
    calls: CallCounts
    slots: int
    max_length: int
    max_prefill_length: int
    vocab_size: int
    has_all_logits: bool
    is_asynchronous: bool
    takes_ids: bool
    description: str

    @property
    def speculator(self) -> DecoderExecution | None:
        """The draft head, if one is open."""
        ...

    @property
    def next_hidden(self) -> torch.Tensor | None:
        """The last call's hidden states for a draft head; None for models without one.

        [R, S, D], [T, D] of a packed call, or [R, D] after a draft head's own call; valid until the next call.
        """
        ...

    @property
    def packed(self) -> PackedCalls | None:
        """The calls in which decoding and prompts share a call; None if they have a call each."""
        ...

    @property
    def cache(self) -> SequenceCache:
        """The caches."""
        ...

    @property
    def adapters(self) -> AdapterSlots | None:
        """Memory of adapters; None if the network takes none."""
        ...

    def forward(self, call: Call, draw: Draw | None = None) -> torch.Tensor:
        """Run new tokens; return fp32 logits [R, V] of each row's last token, or [R, S, V] of all tokens.

        draw: follows a decode step. The result is valid until the next call. Raises ExecutionError if a row has no
        room.
        """
        ...

    def slots_to_run(self, slots: slice) -> slice:
        """Return the consecutive slots that a decode step of `slots` should run; it may include idle ones."""
        ...

    def tokens_to_run(self, tokens: int, most: int) -> int:
        """Return the number of tokens per row of a step that checks guesses: `tokens`, or `most` with padding."""
        ...

    def prepare(self) -> None:
        """Allocate what first calls would allocate, once the weight budget is known."""
        ...

    def warm_up(self, draws: Sequence[Draw | None], guesses: int) -> None:
        """Do what first calls would wait for, while no slot is in use.

        draws: those that decode steps will have. guesses: per row in steps that check guesses; 0 for none.
        """
        ...

    def layer_seconds(self, call: Call) -> dict[str, float]:
        """Run new tokens; return the time of each layer, in the order of execution."""
        ...

    def close(self) -> None:
        """Free the memory."""
        ...


class RankExecution(DecoderExecution, Protocol):
    """A DecoderExecution of one rank. Outside the last pipeline stage it returns hidden states [R, S, D].

    hidden: the input that takes those of the previous stage; None on the first stage.
    """

    hidden: InputSpec | None

    @property
    def cache(self) -> KvCache:
        """This rank's caches."""
        ...

    @property
    def adapters(self) -> AdapterMemory | None:
        """Memory of this rank's share of adapters; None if the network takes none."""
        ...

    def share_cache(self, cache: KvCache) -> None:
        """Put this rank's caches into the memory of another's, with as many slots; both are still empty."""
        ...

    def load_weights(self) -> None:
        """Load the weights onto the network's device unless they are there; from any thread, one at a time."""
        ...

    def unload_weights(self) -> None:
        """Free the weights once all calls are done; later calls need them loaded again."""
        ...

    def abort(self) -> None:
        """Abort collectives that wait for a lost rank; callable from any thread."""
        ...
