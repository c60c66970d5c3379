"""GPU memory for an engine's weights; those beyond it stay in host memory and are copied when a layer needs them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trtkit.errors import RequestError

if TYPE_CHECKING:
    from trtkit.bundle.bundle import Bundle

_OPTION = "weight_budget_gib"


def weight_budget_bytes(bundle: Bundle, budget_gib: float | None) -> int | None:
    """Return a budget in bytes, None without one. Raises RequestError if the bundle's engines cannot have one."""
    if budget_gib is None:
        return None
    if not bundle.manifest.config.build.weight_streaming:
        fix = "build with `--set build.weight_streaming=true`, or leave it out"
        raise RequestError("the engine was built with all weights on the GPU", _OPTION, fix)
    if not 0 <= budget_gib < float("inf"):
        raise RequestError(f"{budget_gib:g} GiB", _OPTION, "give 0 or more")
    return int(budget_gib * 2**30)


def over_budget(budget_bytes: int, streamable_bytes: int) -> RequestError:
    """Return the error for a budget that is more than the weights that could stay on the host."""
    what = (
        f"{budget_bytes / 2**30:.4g} GiB are more than all weights that can be streamed, {streamable_bytes / 2**30:.4g}"
    )
    return RequestError(f"{what} GiB", _OPTION, "give less, or leave it out to keep all weights on the GPU")
