"""Run text through a transformers model to count the blocks of neurons that its tokens activate."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence


class Activity:
    """Counts of one layer's blocks with a nonzero neuron, over all tokens. most: of one token."""

    def __init__(self) -> None:
        self.most, self._active, self._tokens = 0, 0, 0

    @property
    def mean(self) -> float:
        """Mean number of active blocks per token."""
        return self._active / max(self._tokens, 1)

    def add(self, neurons: torch.Tensor, block: int) -> None:
        """Count the active blocks of activations [tokens, F]."""
        padded = torch.nn.functional.pad(neurons != 0, (0, -neurons.shape[-1] % block))
        counts = padded.view(len(padded), -1, block).any(-1).sum(-1)
        self.most = max(self.most, int(counts.max()))
        self._active += int(counts.sum())
        self._tokens += len(counts)


def measure(
    model: torch.nn.Module,
    modules: Mapping[str, int],
    block: int,
    texts: Sequence[Sequence[int]],
    report: Callable[[int], None],
) -> dict[int, Activity]:
    """Return the activity of layers over windows of tokens.

    modules: the layer of each module that reads neurons, by name.
    """
    activities, hooks = {index: Activity() for index in modules.values()}, []

    def noted(index: int) -> Callable[[torch.nn.Module, tuple[torch.Tensor, ...]], None]:
        def note(_: torch.nn.Module, inputs: tuple[torch.Tensor, ...]) -> None:
            activities[index].add(inputs[0].reshape(-1, inputs[0].shape[-1]), block)

        return note

    for name, index in modules.items():
        hooks.append(model.get_submodule(name).register_forward_pre_hook(noted(index)))
    try:
        with torch.inference_mode():
            for number, ids in enumerate(texts):
                model(torch.tensor([list(ids)]), use_cache=False)
                report(number + 1)
    finally:
        for hook in hooks:
            hook.remove()
    return activities
