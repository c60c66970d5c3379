"""Metrics of a language model's engine, for every server."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from trtkit.llm.engine import LLMEngine

COUNTERS = {
    "generated_tokens": "Tokens of answers.",
    "prompt_tokens": "Tokens of prompts that were computed.",
    "reused_tokens": "Tokens of prompts that were found in a cache.",
    "imported_tokens": "Tokens of prompts, among those found in a cache, that another engine computed.",
    "restored_tokens": "Tokens of prompts, among those found in a cache, that host memory had.",
    "file_tokens": "Tokens of prompts, among those that host memory had, that were read from files.",
    "drafted_tokens": "Tokens that were guessed ahead.",
    "accepted_tokens": "Tokens, among those guessed ahead, that the model then chose.",
    "swaps": "Sequences that gave their slot to another and whose caches the host kept; others are computed again.",
    "missed_blocks": "Blocks of active neurons that `llm.sparse_ffn` left out.",
    "preemptions": "Sequences that gave their slot to another and came back later.",
}
"""Counters, as fields of the engine's statistics."""


def hit_rate(engine: LLMEngine) -> float | None:
    """Return the share of prompt tokens that were found in a cache; None before the first prompt."""
    statistics = engine.statistics
    prompts = statistics.prompt_tokens + statistics.reused_tokens
    return statistics.reused_tokens / prompts if prompts else None


def gauges(engine: LLMEngine) -> dict[str, tuple[str, float]]:
    """Return the gauges by name: description and current value."""
    return {
        "slots_busy": ("Slots with a sequence in them.", engine.execution.slots - engine.free_slots),
        "slots": ("Slots of the engine.", engine.execution.slots),
        "requests_waiting": ("Prompts that wait for a slot.", engine.waiting),
        "host_cache_bytes": ("Bytes of caches in host memory.", engine.host.size_bytes),
        "cache_hit_rate": ("Part of all prompts' tokens that was found in a cache.", hit_rate(engine) or 0.0),
    }
