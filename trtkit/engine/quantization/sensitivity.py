"""What each layer's quantization costs, one at a time, and which layers a budget leaves, as they are or in more bits.

The loss is the mean Kullback-Leibler divergence of next-token distributions from the unquantized model's, in nats.
"""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Literal

import torch

from trtkit.engine.quantization.choice import inputs_of
from trtkit.engine.quantization.emulation import EmulatedLayer
from trtkit.engine.quantization.methods import METHODS
from trtkit.errors import QuantizeError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from trtkit.engine.quantization.choice import Layer
    from trtkit.engine.quantization.llm import QuantizedModel

Json = dict[str, Any]
WINDOWS, LENGTH = 2, 128
_BUDGET = re.compile(r"(\d+(?:\.\d+)?)\s*(bits|mib|nats)", re.IGNORECASE)
_BITS = {"int8": 8.0, "fp8": 8.0, "mxfp8": 8.25, "fp4": 4.5}
ORIGINAL_BITS = 16.0


@dataclass(frozen=True)
class Budget:
    """What quantization may cost.

    bits: mean bits of a linear layer's weight; mib: of all linear layers together; nats: the loss of the whole.
    """

    value: float
    unit: Literal["bits", "mib", "nats"]


@dataclass(frozen=True)
class LayerLoss:
    """loss: in nats, with this layer alone quantized. weights: how many it has. bits: of one when quantized;
    left_bits: when a budget leaves it.
    """

    layer: str
    method: str
    loss: float
    weights: int
    bits: float
    left_bits: float = ORIGINAL_BITS


def parse_budget(text: str) -> Budget:
    """Return a budget such as `5.5bits`, `80MiB` or `0.02nats`. Raises QuantizeError."""
    match = _BUDGET.fullmatch(text.strip())
    if match is None:
        fix = "write it as `5.5bits` (of a weight), `80MiB` (of all linear layers) or `0.02nats` (of loss)"
        raise QuantizeError(f"`{text}` is no budget", "--budget", fix)
    unit: Any = match[2].lower()
    return Budget(float(match[1]), unit)


@dataclass(frozen=True)
class Bits:
    """How many bits weights take with their share of scales and offsets. fallback: method of layers that are left."""

    block: int
    has_zero_points: bool = False
    fallback: str | None = None

    def __call__(self, method: str) -> float:
        """Return the bits of a weight of a method."""
        kind = METHODS[method].format
        if kind == "int4":
            return 4 + 16 * (2 if self.has_zero_points else 1) / self.block
        return _BITS[kind]

    def left(self) -> float:
        """Return the bits of a weight that a budget leaves."""
        return ORIGINAL_BITS if self.fallback is None else self(self.fallback)


class Switchboard:
    """Turns the quantization of single layers on and off."""

    def __init__(self, quantized: QuantizedModel) -> None:
        self._quantized, self._originals = quantized, quantized.originals
        self._modules = dict(quantized.model.named_modules())
        self._wanted = {layer: self._is_inputs_enabled(layer) for layer in quantized.choice.methods}
        self._emulated = {
            layer: EmulatedLayer(self._modules[layer.module], kind)
            for layer, method in quantized.choice.methods.items()
            if (kind := METHODS[method].format) == "fp4" or kind == "mxfp8"
        }

    @property
    def layers(self) -> list[Layer]:
        """All quantized layers."""
        return list(self._wanted)

    def only(self, layers: Iterable[Layer]) -> None:
        """Quantize these layers, and no others."""
        on = set(layers)
        for layer in self._wanted:
            self._set(layer, layer in on)

    def restore(self) -> None:
        """Quantize all layers, as before this was made."""
        self.only(self.layers)
        for layer in self._emulated.values():
            layer.give_back()

    def _set(self, layer: Layer, is_on: bool) -> None:
        module = self._modules[layer.module]
        if layer in self._emulated:
            self._emulated[layer].set(is_on=is_on)
            return
        if layer in self._originals:
            matrix = self._quantized.matrices[layer]
            module.weight.data = torch.from_numpy(matrix.weights()) if is_on else self._originals[layer]
            return
        (module.weight_quantizer.enable if is_on else module.weight_quantizer.disable)()
        if self._wanted[layer]:
            (module.input_quantizer.enable if is_on else module.input_quantizer.disable)()

    def _is_inputs_enabled(self, layer: Layer) -> bool:
        quantizer = getattr(self._modules[layer.module], "input_quantizer", None)
        return quantizer is not None and bool(quantizer.is_enabled)


class Scorer:
    """Compares a model with itself unquantized, on windows of text."""

    def __init__(self, model: Any, texts: Sequence[Sequence[int]]) -> None:
        """The model is to be unquantized at this moment."""
        self._model = model
        self._ids = torch.tensor([list(ids[:LENGTH]) for ids in texts[:WINDOWS]])
        self._base = self._log_probabilities()
        self._weights = self._base.exp()

    def loss(self) -> float:
        """Return the loss as the model is now. Raises QuantizeError where it is not a number."""
        found = float((self._weights * (self._base - self._log_probabilities())).sum(-1).mean())
        if not found < float("inf"):
            raise QuantizeError("the quantized model computes NaN", fix="exclude layers, or use another method")
        return max(found, 0.0)

    def _log_probabilities(self) -> torch.Tensor:
        with torch.inference_mode():
            return torch.log_softmax(self._model(self._ids, use_cache=False).logits.double(), dim=-1)


def loss_of(made: QuantizedModel, texts: Sequence[Sequence[int]]) -> float:
    """Return what a model loses by its quantization, in nats."""
    switches = Switchboard(made)
    switches.only([])
    scorer = Scorer(made.model, texts)
    switches.only(switches.layers)
    loss = scorer.loss()
    switches.restore()
    return loss


def layer_losses(
    switches: Switchboard, scorer: Scorer, methods: dict[Layer, str], bits: Bits, report: Any
) -> list[LayerLoss]:
    """Return each layer's loss with it alone quantized, the largest first."""
    found = []
    for index, layer in enumerate(switches.layers):
        switches.only([layer])
        method = methods[layer]
        found.append(LayerLoss(layer.name, method, scorer.loss(), layer.rows * layer.size, bits(method), bits.left()))
        report(index + 1, len(switches.layers))
    return sorted(found, key=lambda row: -row.loss)


def keep_for(
    budget: Budget, losses: Sequence[LayerLoss], loss_without: Callable[[Sequence[str]], float]
) -> tuple[list[str], float]:
    """Return the layers to leave as they are so that a budget holds, and the loss of quantizing the rest.

    Layers are left by what they lose for what they save. loss_without: measures the model with all but some layers
    quantized. Raises QuantizeError where no choice holds it.
    """
    ranked = by_loss_saved(losses)
    if budget.unit == "nats":
        count = _fewest(len(ranked), lambda kept: loss_without(_names(ranked[:kept])) <= budget.value)
        return _names(ranked[:count]), loss_without(_names(ranked[:count]))
    allowed = budget.value * _total(losses) if budget.unit == "bits" else budget.value * 2**23
    used, count = sum(row.bits * row.weights for row in losses), 0
    if used > allowed:
        least = used / _total(losses) if budget.unit == "bits" else used / 2**23
        fix = f"raise it to {least:.2f}{budget.unit}, or use a method of fewer bits"
        raise QuantizeError(f"all layers quantized take more than {budget.value:g}{budget.unit}", "--budget", fix)
    for group in ranked:
        used += sum((row.left_bits - row.bits) * row.weights for row in group)
        if used > allowed:
            break
        count += 1
    return _names(ranked[:count]), loss_without(_names(ranked[:count]))


@dataclass(frozen=True)
class Choosable:
    """What leaving some layers as they are gives. mib: of all linear layers; loss: of quantizing the others."""

    kept: int
    mib: float
    loss: float


@dataclass(frozen=True)
class Scores:
    """Each layer's loss, the largest first; the layers that a budget leaves alone; the loss of quantizing the rest.

    curve: what other budgets would give.
    """

    losses: list[LayerLoss]
    kept: list[str]
    loss: float
    curve: list[Choosable]

    def to_json(self) -> Json:
        """Return the scores as JSON data."""
        lists = {"layers": [asdict(row) for row in self.losses], "curve": [asdict(point) for point in self.curve]}
        return {**lists, "kept": self.kept, "loss": self.loss}


def score(
    made: QuantizedModel,
    texts: Sequence[Sequence[int]],
    budget: Budget | None,
    bits: Bits,
    report: Any,
) -> Scores:
    """Measure every layer alone, and the whole as the budget allows. The model is quantized as before after this.

    Raises QuantizeError for budgets that nothing holds.
    """
    switches = Switchboard(made)
    switches.only([])
    scorer = Scorer(made.model, texts)
    losses = layer_losses(switches, scorer, made.choice.methods, bits, report)
    by_name = {layer.name: layer for layer in switches.layers}

    def loss_without(kept: Sequence[str]) -> float:
        switches.only(layer for name, layer in by_name.items() if name not in set(kept))
        return scorer.loss()

    kept, loss = ([], loss_without([])) if budget is None else keep_for(budget, losses, loss_without)
    curve = loss_by_size(losses, loss_without)
    switches.restore()
    return Scores(losses, kept, loss, curve)


def loss_by_size(losses: Sequence[LayerLoss], loss_without: Callable[[Sequence[str]], float]) -> list[Choosable]:
    """Return sizes and losses with none, an eighth, a quarter, half and three quarters of the layers left as they are.

    The layers are those that budgets leave first; the smallest size comes first.
    """
    ranked, found = by_loss_saved(losses), []
    for count in sorted({0, *(len(ranked) * share // 8 for share in (1, 2, 4, 6))}):
        left = _names(ranked[:count])
        bits = sum((row.left_bits if row.layer in left else row.bits) * row.weights for row in losses)
        found.append(Choosable(len(left), bits / 2**23, loss_without(left)))
    return found


def by_loss_saved(losses: Sequence[LayerLoss]) -> list[list[LayerLoss]]:
    """Return layers by what they lose for what they save, the largest first; those that share inputs together.

    Engines fuse such layers, and ModelOpt's checkpoints have them in one format.
    """
    groups: dict[str, list[LayerLoss]] = {}
    for row in losses:
        groups.setdefault(inputs_of(row.layer), []).append(row)
    return sorted(groups.values(), key=lambda group: -sum(row.loss for row in group) / _saved(group))


def _saved(rows: Sequence[LayerLoss]) -> float:
    """Return the bits that quantizing saves; the weights, where it saves none."""
    return sum(row.weights * max(row.left_bits - row.bits, 1e-9) for row in rows)


def _names(groups: Sequence[Sequence[LayerLoss]]) -> list[str]:
    return [row.layer for group in groups for row in group]


def _fewest(count: int, holds: Callable[[int], bool]) -> int:
    """Return the smallest number from 0 to `count` that holds, which all larger ones do; `count` always does."""
    low, high = 0, count
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if holds(middle) else (middle + 1, high)
    return low


def _total(losses: Sequence[LayerLoss]) -> int:
    return sum(row.weights for row in losses)
