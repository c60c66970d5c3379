"""Quantize an LLM block by block, each calibrated on the outputs of the quantized blocks before it."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from trtkit.quantization.int4 import ROUNDERS, Rounding, nearest
from trtkit.quantization.llm.calibration import check_inputs, run

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from trtkit.quantization.llm.choice import LinearLayer, MethodChoice
    from trtkit.quantization_methods import Algorithm
    from trtkit.quantized_matrix import QuantizedMatrix

_BLOCK = re.compile(r"^(.*?\.\d+)\.")


def quantize_int4(
    model: Any,
    choice: MethodChoice,
    rounding: Rounding,
    texts: Sequence[Sequence[int]],
    report: Callable[[int, int], None],
) -> dict[LinearLayer, QuantizedMatrix]:
    """Quantize a model's int4 layers in place and return their matrices.

    report: receives the number of blocks done and the total.
    """
    layers = choice.rounded_here
    modules = dict(model.named_modules())
    if not texts:
        return _rounded(layers, rounding, modules)
    matrices: dict[LinearLayer, QuantizedMatrix] = {}
    blocks = _by_block(layers)
    calls = _first_calls(model, [name for name in blocks if name], texts)
    for index, (name, inside) in enumerate(blocks.items()):
        if name:
            states = _states(modules[name], inside, modules, calls[name])
            for state in states:
                matrices |= _quantized(state, choice, rounding, modules)
            _advance(modules[name], calls, name)
        else:  # the head is outside the blocks
            matrices |= _rounded(inside, rounding, modules)
        report(index + 1, len(blocks))
    return matrices


@dataclass(eq=False)
class _Inputs:
    """Layers that share inputs, and those inputs' x^T x."""

    layers: list[LinearLayer]
    moments: torch.Tensor


@dataclass(eq=False)
class _Call:
    """A call of a block: its hidden states, and its other arguments."""

    hidden: torch.Tensor | None
    others: tuple[Any, ...] = ()
    named: dict[str, Any] = field(default_factory=dict)

    def run(self, block: torch.nn.Module) -> torch.Tensor:
        """Return the block's output hidden states."""
        result = block(self.hidden, *self.others, **self.named)
        state: torch.Tensor = result[0] if isinstance(result, tuple) else result
        return state


def _by_block(layers: Sequence[LinearLayer]) -> dict[str, list[LinearLayer]]:
    """Group layers by block; the key is empty for layers outside the blocks."""
    blocks: dict[str, list[LinearLayer]] = {}
    for layer in layers:
        match = _BLOCK.match(layer.module)
        blocks.setdefault(match[1] if match else "", []).append(layer)
    return blocks


def _first_calls(model: Any, names: Sequence[str], texts: Sequence[Sequence[int]]) -> dict[str, list[_Call]]:
    """Run all windows once; return the calls of each block, with hidden states for the first block only."""
    modules = dict(model.named_modules())
    calls: dict[str, list[_Call]] = {name: [] for name in names}

    def note(name: str) -> Callable[..., None]:
        def hook(_: torch.nn.Module, inputs: tuple[Any, ...], named: dict[str, Any]) -> None:
            others = dict(named)
            hidden = inputs[0] if inputs else others.pop("hidden_states")
            calls[name].append(_Call(hidden if name == names[0] else None, inputs[1:], others))

        return hook

    hooks = [modules[name].register_forward_pre_hook(note(name), with_kwargs=True) for name in names]
    run(model, texts, lambda _: None)
    for hook in hooks:
        hook.remove()
    return calls


def _states(
    block: torch.nn.Module, layers: Sequence[LinearLayer], modules: dict[str, Any], calls: Sequence[_Call]
) -> list[_Inputs]:
    """Run a block over all windows; return the moments of its layers' inputs, grouped by shared inputs."""
    moments: dict[str, torch.Tensor] = {}

    def note(layer: LinearLayer) -> Callable[..., None]:
        def hook(_: torch.nn.Module, inputs: tuple[torch.Tensor, ...]) -> None:
            x = inputs[0].reshape(-1, inputs[0].shape[-1]).float()
            moments[layer.name] = moments.get(layer.name, 0) + x.T @ x

        return hook

    hooks = [modules[layer.module].register_forward_pre_hook(note(layer)) for layer in layers]
    with torch.inference_mode():
        for call in calls:
            call.run(block)
    for hook in hooks:
        hook.remove()
    states: list[_Inputs] = []
    for layer in layers:
        own_moments = moments[layer.name]
        check_inputs(layer.name, own_moments.diagonal())
        alike = next((state for state in states if torch.equal(state.moments, own_moments)), None)
        if alike is None:
            states.append(_Inputs([layer], own_moments))
        else:
            alike.layers.append(layer)
    return states


def _rounded(
    layers: Sequence[LinearLayer], rounding: Rounding, modules: dict[str, Any]
) -> dict[LinearLayer, QuantizedMatrix]:
    """Round layers to nearest, without calibration."""
    return {
        layer: _put(module, nearest(_weight(module), rounding))
        for layer in layers
        for module in [modules[layer.module]]
    }


def _quantized(
    state: _Inputs, choice: MethodChoice, rounding: Rounding, modules: dict[str, Any]
) -> dict[LinearLayer, QuantizedMatrix]:
    """Quantize layers that share inputs, together if they use the same algorithm."""
    groups: dict[Algorithm, list[LinearLayer]] = {}
    for layer in state.layers:
        groups.setdefault(choice.of(layer).algorithm, []).append(layer)
    matrices: dict[LinearLayer, QuantizedMatrix] = {}
    for algorithm, layers in groups.items():
        weights = [_weight(modules[layer.module]) for layer in layers]
        rounded = ROUNDERS[algorithm](weights, state.moments, rounding)
        matrices |= {layer: _put(modules[layer.module], matrix) for layer, matrix in zip(layers, rounded, strict=True)}
    return matrices


def _advance(block: torch.nn.Module, calls: dict[str, list[_Call]], name: str) -> None:
    """Pass the outputs of a quantized block to the next block's calls."""
    names = list(calls)
    following = names[names.index(name) + 1 :][:1]
    with torch.inference_mode():
        for index, call in enumerate(calls.pop(name)):
            if following:
                calls[following[0]][index].hidden = call.run(block)


def _weight(module: torch.nn.Module) -> torch.Tensor:
    """Return a linear layer's weight in fp32."""
    weight = module.weight
    assert isinstance(weight, torch.Tensor)
    return weight.detach().float()


def _put(module: torch.nn.Module, matrix: QuantizedMatrix) -> QuantizedMatrix:
    """Replace a layer's weight by that of a quantized matrix; return the matrix."""
    module.weight.data = torch.from_numpy(matrix.weights())
    return matrix
