"""The times and counts that `--stats` shows: one line for a request, or for all of a run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trtkit.cli.tables import plural

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trtkit.llm import LLM, RequestMetrics


def request_stats(metrics: RequestMetrics) -> str:
    """Return a request's figures as one line."""
    parts = [f"{plural(metrics.output_tokens, 'token')} in {metrics.e2e_s:.2f} s"]
    parts += [f"TTFT {1000 * metrics.ttft_s:.1f} ms"] if metrics.ttft_s is not None else []
    parts += [f"TPOT {1000 * metrics.tpot_s:.1f} ms"] if metrics.tpot_s is not None else []
    parts += (
        [f"{metrics.output_tokens / metrics.e2e_s:.1f} tokens/s"] if metrics.output_tokens and metrics.e2e_s else []
    )
    parts.append(f"prompt {plural(metrics.prompt_tokens, 'token')}, {metrics.reused_tokens} from cache")
    return "; ".join(parts + _speculation(metrics.accepted_tokens, metrics.drafted_tokens))


def total_stats(llm: LLM, requests: Sequence[RequestMetrics], seconds: float) -> str:
    """Return what a run did as one line."""
    done = llm.statistics
    tokens = sum(request.output_tokens for request in requests)
    parts = [f"{plural(len(requests), 'request')} on {plural(llm.slots, 'slot')} in {seconds:.2f} s"]
    parts += [plural(tokens, "token"), f"{tokens / seconds:.1f} tokens/s"]
    first = sorted(one.ttft_s for one in requests if one.ttft_s is not None)
    tpots_s = sorted(one.tpot_s for one in requests if one.tpot_s is not None)
    parts += [f"TTFT {1000 * first[len(first) // 2]:.1f} ms (median)"] if first else []
    parts += [f"TPOT {1000 * tpots_s[len(tpots_s) // 2]:.1f} ms (median)"] if tpots_s else []
    parts.append(f"prompts {plural(done.prompt_tokens + done.reused_tokens, 'token')}, {done.reused_tokens} from cache")
    parts += [f"{done.restored_tokens} of these from host memory"] if done.restored_tokens else []
    parts += [f"{done.file_tokens} read from files"] if done.file_tokens else []
    parts += [plural(done.preemptions, "preemption")] if done.preemptions else []
    return "; ".join(parts + _speculation(done.accepted_tokens, done.drafted_tokens))


def _speculation(accepted: int, drafted: int) -> list[str]:
    return [f"{accepted} of {plural(drafted, 'draft token')} accepted ({accepted / drafted:.0%})"] if drafted else []
