"""GPU memory budget for an engine's weights; the rest stays in host memory and is copied when a layer needs it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trtkit.errors import RequestError

if TYPE_CHECKING:
    from trtkit.bundle.bundle import Bundle
    from trtkit.serving_options import WeightBudget

_OPTION = "weight_budget_gib"
_FREE_SHARE = 10
"""Divisor of a GPU's memory: this part stays free of an automatic budget, for later allocations."""


def weight_budget_bytes(bundle: Bundle, budget_gib: WeightBudget | None) -> int | None:
    """Return a budget in bytes; None without one, and for `auto`, which is set once everything else is in memory.

    Raises RequestError if the bundle's engines do not support one.
    """
    if budget_gib is None:
        return None
    if not bundle.manifest.config.build.weight_streaming:
        fix = "build with `--set build.weight_streaming=true`, or leave it out"
        raise RequestError("the engine was built with all weights on the GPU", _OPTION, fix)
    if isinstance(budget_gib, str):
        _check_automatic(bundle, budget_gib)
        return None
    if not 0 <= budget_gib < float("inf"):
        raise RequestError(f"{budget_gib:g} GiB", _OPTION, "give 0 or more")
    return int(budget_gib * 2**30)


def automatic_budget(free_bytes: int, memory_bytes: int, streamable_bytes: int) -> int:
    """Return the bytes of weights to keep on a GPU of `memory_bytes` if everything else leaves `free_bytes` free."""
    return min(max(free_bytes - memory_bytes // _FREE_SHARE, 0), streamable_bytes)


def over_budget(budget_bytes: int, streamable_bytes: int) -> RequestError:
    """Return the error for a budget larger than all weights that can be streamed."""
    what = (
        f"{budget_bytes / 2**30:.4g} GiB are more than all weights that can be streamed, {streamable_bytes / 2**30:.4g}"
    )
    return RequestError(f"{what} GiB", _OPTION, "give less, or leave it out to keep all weights on the GPU")


def _check_automatic(bundle: Bundle, budget: str) -> None:
    """Raise RequestError for other words than `auto`, and for models whose free memory is unknown when they open."""
    if budget != "auto":
        raise RequestError(f"`{budget}` is not a budget", _OPTION, "give a number of GiB, or `auto`")
    manifest, fix = bundle.manifest, "give a number of GiB"
    if manifest.interface != "tokens" or manifest.images is not None or manifest.encoder is not None:
        what = "`auto` is for decoders alone: what other networks take is known when they run"
        raise RequestError(what, _OPTION, fix)
    if manifest.grid.ranks > 1:
        raise RequestError(f"`auto` is for one GPU; the bundle has {manifest.grid.ranks} ranks", _OPTION, fix)
