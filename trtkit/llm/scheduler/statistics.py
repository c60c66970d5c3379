"""What an engine has done, in counts."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class Statistics:
    """What an engine has done. prompt_tokens: computed, and those that states read again after a wrong guess;
    reused_tokens: of prompts, found in a cache; imported_tokens: those of them that another engine computed.

    restored_tokens: of prompts, those that were found in host memory; file_tokens: those of them that files had.

    swaps: preemptions whose sequence the host keeps; others are computed again.

    synchronous_steps: decoding steps that the host waited for before it could launch the next: the engine does not
    overlap, or a row is a beam, or a user's function has to see its logits. discarded_tokens: drawn after an end.
    """

    steps: int = 0
    prompt_tokens: int = 0
    reused_tokens: int = 0
    imported_tokens: int = 0
    restored_tokens: int = 0
    file_tokens: int = 0
    generated_tokens: int = 0
    drafted_tokens: int = 0
    accepted_tokens: int = 0
    preemptions: int = 0
    swaps: int = 0
    synchronous_steps: int = 0
    discarded_tokens: int = 0
