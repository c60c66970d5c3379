"""What every runtime of a decoder-only LLM offers."""

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
    """Draws a step's tokens where its network computes, without the host, so that a CUDA graph can hold both."""

    def __call__(self, logits: torch.Tensor, slots: torch.Tensor) -> None:
        """Write the tokens of slots [R] from logits [R, V] into the decoder's `tokens`; all are where it computes."""
        ...


class SequenceCache(CacheLayout, Protocol):
    """What is done with cached sequences between calls. model: digest of the model that computes them."""

    model: str

    def carry_out(self, copies: Sequence[Copy]) -> None:
        """Do a batch's copies within the caches, in order."""
        ...

    def tell(self, slot: int, pages: Sequence[int]) -> None:
        """Take in which pages a slot's tokens are, from who decides on pages elsewhere."""
        ...

    def set_pages(self, changes: Ints) -> None:
        """Take what has changed in page tables: slots, places in their rows, and pages [N, 3]."""
        ...

    def move(self, slots: Ints, sources: Ints, targets: Ints) -> None:
        """Copy a cached token within each slot: [R] slots, and each one's place and new place."""
        ...

    def mark(self, rows: slice) -> None:
        """Keep the recurrent states of neighbouring slots as they are now, for `rewind`."""
        ...

    def rewind(self, slots: Sequence[int]) -> None:
        """Let the recurrent states of slots be again what they were when the slots were marked."""
        ...

    def form(self, tokens: int) -> CacheForm:
        """Return what a saved sequence of `tokens` tokens is."""
        ...

    def save(self, slot: int, count: int) -> SavedSequence:
        """Return the first `count` tokens of a slot, copied to the host."""
        ...

    def load(self, slot: int, saved: SavedSequence) -> None:
        """Begin a slot with a saved sequence. Raises ExecutionError for what `check` refuses."""
        ...

    def blocks(self, tokens: int) -> CacheBlocks | None:
        """Return what copies blocks of so many tokens to and from the host; None if slots hold more than tokens."""
        ...

    def check(self, saved: SavedSequence) -> None:
        """Raise ExecutionError for a sequence of another model or other caches, of too many tokens or too few bytes."""
        ...

    def close(self) -> None:
        """Give the memory back."""
        ...


class AdapterSlots(Protocol):
    """Memory for the low-rank matrices of resident adapters. most: ranks of all together."""

    most: int

    @property
    def dtype(self) -> torch.dtype:
        """The type of the matrices."""
        ...

    def write(self, rows: Sequence[int], adapter: int, matrices: Matrices) -> None:
        """Let `rows` be an adapter's. matrices: a [r, in] and b [r, out] by layer, of at most as many ranks."""
        ...

    def erase(self, rows: Sequence[int]) -> None:
        """Let `rows` be nobody's."""
        ...


class NeuronCounts:
    """Blocks of neurons that a decoder's steps have activated, read and missed: those active ones that they left out.

    totals: zeros, int64 [3], where the network computes; they are added up there, so that no step waits for the host.
    row_bytes: that the reference executor has read of neurons' rows, but for those that it keeps in memory.
    """

    def __init__(self, totals: torch.Tensor) -> None:
        self._totals = totals
        self.row_bytes = 0

    def add(self, counts: torch.Tensor) -> None:
        """Count a call by its `block_counts` [layers, 2]: of each layer, active blocks and those that are read."""
        active, read = counts.long().unbind(1)
        missed = (active - read).clamp(min=0)
        for index, new in enumerate((active, read, missed)):
            self._totals[index] += new.sum()

    def reset(self) -> None:
        """Forget all steps."""
        self._totals.zero_()

    def values(self) -> tuple[int, int, int]:
        """Return how many blocks were active, read and missed. Waits for the device."""
        active, read, missed = self._totals.tolist()
        return active, read, missed


@dataclass
class CallCounts:
    """What a decoder has run. network_calls: of its network, with computed_tokens, of which padded_tokens are idle.

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
    """A decoder whose network is packed."""

    @property
    def token_tile(self) -> int:
        """A call with prompts computes a multiple of so many tokens, of which the last may be idle; 1 if none are."""
        ...

    @property
    def row_tokens(self) -> int:
        """How many new tokens a row that decodes has at most: its own, and guesses."""
        ...

    def forward_packed(self, packed: PackedCall, draw: Draw | None = None) -> torch.Tensor:
        """Run slots that decode and slots that read prompts at once; return fp32 logits [N, V] of the requested tokens.

        A rank that is not of a pipeline's last stage gives hidden states [T, D] of all tokens.
        draw: what follows a step without prompts and guesses, whose logits are those of its rows in order. See
        `forward`.
        """
        ...


class DecoderExecution(Protocol):
    """A decoder's network with KV caches of `slots` sequences.

    max_length: T, tokens a slot holds. max_prefill_length: the most new tokens of one row in one
    call. is_asynchronous: `forward` returns before it has computed. takes_ids: the network itself reads token ids, so
    the host need not know them. calls: what it has run. tokens: [slots] int64, where it computes: what each slot drew
    last, for ids of -1.
    description: what computes, for people. speculator: the draft head, if it is open. next_hidden: what it reads of
    the last call's tokens, [R, S, D], [T, D] of a packed call, or [R, D] after its own call; valid until the next.
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
        """The draft head, if it is open."""
        ...

    @property
    def next_hidden(self) -> torch.Tensor | None:
        """What a draft head reads of the last call's tokens; None for models without one."""
        ...

    @property
    def packed(self) -> PackedCalls | None:
        """What runs decoding and prompts in one call; None if they have a call each."""
        ...

    @property
    def cache(self) -> SequenceCache:
        """The memory of the caches."""
        ...

    @property
    def adapters(self) -> AdapterSlots | None:
        """The memory of adapters; None if the network takes none."""
        ...

    def forward(self, call: Call, draw: Draw | None = None) -> torch.Tensor:
        """Run new tokens; return fp32 logits [R, V] of each row's last token, or [R, S, V] of all.

        draw: what follows a decode step. The result is valid until the next call. Raises ExecutionError where a row has
        no room.
        """
        ...

    def slots_to_run(self, slots: slice) -> slice:
        """Return the neighboring slots that a decode step of some is to run: those, or some idle ones more."""
        ...

    def tokens_to_run(self, tokens: int, most: int) -> int:
        """Return how many tokens a row is to have in a step that checks guesses: `tokens`, or `most` with padding."""
        ...

    def prepare(self) -> None:
        """Take the memory that first calls would take, once it is known how much of the weights stay on the GPU."""
        ...

    def warm_up(self, draws: Sequence[Draw | None], guesses: int) -> None:
        """Do what first calls would wait for; no slot is in use.

        draws: what decode steps will have. guesses: of each row in steps that check some; 0 for none.
        """
        ...

    def layer_seconds(self, call: Call) -> dict[str, float]:
        """Run new tokens; return how long each layer took, in the order they ran."""
        ...

    def close(self) -> None:
        """Give the memory back."""
        ...


class RankExecution(DecoderExecution, Protocol):
    """A DecoderExecution of one rank. Unless it is the last stage of a pipeline, it gives hidden states [R, S, D].

    hidden: the input that takes those of the stage before; None on the first stage.
    """

    hidden: InputSpec | None

    @property
    def cache(self) -> KvCache:
        """The memory of this rank's caches."""
        ...

    @property
    def adapters(self) -> AdapterMemory | None:
        """The memory of this rank's share of adapters; None if the network takes none."""
        ...

    def share_cache(self, cache: KvCache) -> None:
        """Let this rank's caches lie in the memory of another's, for as many slots; nothing is in either yet."""
        ...

    def load_weights(self) -> None:
        """Bring the weights to where the network computes, if they are not there; by any thread, once at a time."""
        ...

    def unload_weights(self) -> None:
        """Give the memory of the weights back, once all calls are done; calls need them loaded again."""
        ...

    def abort(self) -> None:
        """Let go of collectives that wait for a rank that is gone; from any thread."""
        ...
