"""Sizes and work of a step on an engine's stream."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from trtkit.llm.execution.execution import Draw
    from trtkit.network.input_spec import Role


@dataclass(frozen=True)
class PromptSizes:
    """The rows of a packed step that read prompts.

    rows: B, from slot `first` on if caches are linear. length: S, of the longest. tokens: P, of all, with idle ones.
    window: cached tokens that they read. pages: n, pages that hold them. logits: N; None for one per token of decoding
    rows.
    """

    window: int
    pages: int
    first: int = 0
    rows: int = 0
    length: int = 1
    tokens: int = 0
    logits: int | None = None

    def sizes(self, decoding: int) -> dict[Role, int]:
        """Return the sizes of dynamic axes in a step with `decoding` tokens of decoding rows."""
        return {
            "prompts": self.rows,
            "prompt_length": self.length,
            "prompt_tokens": self.tokens,
            "tokens": decoding + self.tokens,
            "prompt_window": self.window,
            "prompt_pages": self.pages,
            "logit_rows": decoding if self.logits is None else self.logits,
        }


@dataclass(frozen=True)
class StreamStep:
    """What a call enqueues after its inputs; the key of its CUDA graph.

    rows: R, of `size` new tokens each, from slot `first` on, or from 0 if slots hold nothing but pages. window: cached
    tokens that attention reads. row_pages: n, pages that hold them if caches are paged. ranks: of resident adapters.
    draw: compared by identity. prompts: of a packed network. reads_prompts: whether rows of prompts have tokens.
    has_vectors: whether decoding rows read vectors of their prompts, which are on the host.
    """

    first: int
    rows: int
    size: int
    window: int
    row_pages: int
    ranks: int
    draw: Draw | None
    prompts: PromptSizes | None = None
    reads_prompts: bool = False
    has_vectors: bool = False

    @property
    def decodes(self) -> bool:
        """Whether all rows have one token and none reads a prompt."""
        return self.size == 1 and (self.prompts is None or not self.prompts.rows)

    @property
    def sizes(self) -> Mapping[Role, int]:
        """Sizes of the dynamic axes."""
        sizes: dict[Role, int] = {"batch": self.rows, "new_tokens": self.size, "kv_window": self.window}
        sizes |= {"row_pages": self.row_pages, "adapter_rank": self.ranks}
        return sizes if self.prompts is None else sizes | self.prompts.sizes(self.rows * self.size)
