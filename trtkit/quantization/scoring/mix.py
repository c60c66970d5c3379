"""Score a quantized model layer by layer, and mix methods to meet a budget."""

from __future__ import annotations

import re
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

import torch

from trtkit.errors import QuantizeError
from trtkit.quantization.llm.choice import inputs_of
from trtkit.quantization.scoring.emulation import EmulatedLayer
from trtkit.quantization.scoring.report import ORIGINAL_BITS, Choosable, LayerLoss, Scores
from trtkit.quantization_methods import FORMATS, METHODS, weight_bits

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from trtkit.jobs.events import Steps
    from trtkit.quantization.jobs import ScoringRequest
    from trtkit.quantization.llm.choice import LinearLayer, MethodChoice
    from trtkit.quantization.llm.torch_model import QuantizedTorchModel


_BUDGET = re.compile(r"(\d+(?:\.\d+)?)\s*(bits|mib|nats)", re.IGNORECASE)


@dataclass(frozen=True)
class Budget:
    """A limit on size or loss.

    bits: mean bits per weight of linear layers. mib: of all linear layers. nats: the model's loss.
    """

    value: float
    unit: Literal["bits", "mib", "nats"]


def parse_budget(text: str) -> Budget:
    """Return a budget such as `5.5bits`, `80MiB` or `0.02nats`. Raises QuantizeError."""
    match = _BUDGET.fullmatch(text.strip())
    if match is None:
        fix = "write it as `5.5bits` (of a weight), `80MiB` (of all linear layers) or `0.02nats` (of loss)"
        raise QuantizeError(f"`{text}` is not a budget", "--budget", fix)
    unit: Any = match[2].lower()
    return Budget(float(match[1]), unit)


@dataclass(frozen=True)
class Bits:
    """Bits per weight including its share of scales and offsets. fallback: the method of layers left by a budget."""

    block: int
    has_zero_points: bool = False
    fallback: str | None = None

    def __call__(self, method: str) -> float:
        row = METHODS[method]
        if row.takes_block:
            return weight_bits(row.format, self.block, has_offsets=self.has_zero_points)
        return weight_bits(row.format)

    def left(self) -> float:
        """Return the bits per weight of a layer left by a budget."""
        return ORIGINAL_BITS if self.fallback is None else self(self.fallback)


def keep_for(
    budget: Budget, losses: Sequence[LayerLoss], loss_without: Callable[[Sequence[str]], float]
) -> tuple[list[str], float]:
    """Return the layers to leave unquantized to meet a budget, and the loss of quantizing the rest.

    Layers with the most loss per bit saved are left first. loss_without: measures the model with all but some layers
    quantized. Raises QuantizeError if no choice meets the budget.
    """
    ranked = by_loss_saved(losses)
    if budget.unit == "nats":
        count = _fewest(len(ranked), lambda kept: loss_without(_names(ranked[:kept])) <= budget.value)
        return _names(ranked[:count]), loss_without(_names(ranked[:count]))
    allowed = budget.value * _total(losses) if budget.unit == "bits" else budget.value * 2**23
    used, count = sum(row.bits * row.weights for row in losses), 0
    if used > allowed:
        least = used / _total(losses) if budget.unit == "bits" else used / 2**23
        fix = f"raise it to {least:.2f}{budget.unit}, or use a lower-bit method"
        raise QuantizeError(
            f"with every layer quantized, the model is still above {budget.value:g}{budget.unit}",
            "--budget",
            fix,
        )
    for group in ranked:
        used += sum((row.left_bits - row.bits) * row.weights for row in group)
        if used > allowed:
            break
        count += 1
    return _names(ranked[:count]), loss_without(_names(ranked[:count]))


def loss_by_size(losses: Sequence[LayerLoss], loss_without: Callable[[Sequence[str]], float]) -> list[Choosable]:
    """Return sizes and losses with 0, 1/8, 1/4, 1/2 and 3/4 of the layers left unquantized.

    The layers are those that budgets leave first; points are sorted by size, the smallest first.
    """
    ranked, points = by_loss_saved(losses), []
    for count in sorted({0, *(len(ranked) * share // 8 for share in (1, 2, 4, 6))}):
        left = _names(ranked[:count])
        bits = sum((row.left_bits if row.layer in left else row.bits) * row.weights for row in losses)
        points.append(Choosable(len(left), bits / 2**23, loss_without(left)))
    return points


def by_loss_saved(losses: Sequence[LayerLoss]) -> list[list[LayerLoss]]:
    """Return layers by loss per bit saved, the largest first, grouped by shared inputs.

    Engines fuse such layers, and ModelOpt's checkpoints need them in one format.
    """
    groups: dict[str, list[LayerLoss]] = {}
    for row in losses:
        groups.setdefault(inputs_of(row.layer), []).append(row)
    return sorted(groups.values(), key=lambda group: -sum(row.loss for row in group) / _saved(group))


def _saved(rows: Sequence[LayerLoss]) -> float:
    """Return the bits that quantizing saves; a tiny share of the weights if it saves none."""
    return sum(row.weights * max(row.left_bits - row.bits, 1e-9) for row in rows)


def _names(groups: Sequence[Sequence[LayerLoss]]) -> list[str]:
    return [row.layer for group in groups for row in group]


def _fewest(count: int, holds: Callable[[int], bool]) -> int:
    """Return the smallest number up to `count` for which `holds` is true, by bisection; `count` always holds."""
    low, high = 0, count
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if holds(middle) else (middle + 1, high)
    return low


def _total(losses: Sequence[LayerLoss]) -> int:
    return sum(row.weights for row in losses)


@dataclass(frozen=True)
class Scoring:
    """How layers are scored. budget: the limit to meet, if any. fallback: the method of layers that it leaves."""

    budget: Budget | None
    fallback: str | None


@dataclass(frozen=True, eq=False)
class Mixer:
    """Makes quantized models from one source.

    make: quantizes by a choice. texts: to score on. steps: records the scoring.
    """

    make: Callable[[MethodChoice], QuantizedTorchModel]
    texts: Sequence[Sequence[int]]
    has_zero_points: bool
    steps: Steps

    def mixed(self, choice: MethodChoice, scoring: Scoring) -> tuple[QuantizedTorchModel, Scores]:
        """Return the model quantized within the budget, and its layers' scores.

        Raises QuantizeError for budgets that cannot be met.
        """
        model = self.make(choice)
        bits = Bits(choice.block, self.has_zero_points, scoring.fallback)
        budget = self._remaining(choice, scoring)
        scores = score(model, self.texts, budget, bits, self.steps.counted("layers"))
        self.steps.add("score", f"{len(scores.layers)} layers one by one")
        if scores.kept:
            model = self.make(choice.without(scores.kept, scoring.fallback))
        if scores.kept and scoring.fallback is not None:
            scores = replace(scores, loss=loss_of(model, self.texts), fallback=scoring.fallback)
        return model, scores

    def _remaining(self, choice: MethodChoice, scoring: Scoring) -> Budget | None:
        """Return the budget less the loss of the fallback applied to all layers.

        Small losses add up approximately; the loss of the final mix is measured at the end.
        """
        budget = scoring.budget
        if budget is None or scoring.fallback is None or budget.unit != "nats":
            return budget
        names = [layer.name for layer in choice.methods]
        lost = loss_of(self.make(choice.without(names, scoring.fallback)), self.texts)
        if lost > budget.value:
            what = f"{scoring.fallback} alone loses {lost:.4f} nats, more than {budget.value:g}"
            raise QuantizeError(what, "--budget", "raise it, or leave out --fallback to keep these layers unquantized")
        return replace(budget, value=budget.value - lost)


def scoring_of(request: ScoringRequest) -> Scoring | None:
    """Return how layers are to be scored; None if they are not. Raises QuantizeError."""
    if request.budget:
        return Scoring(parse_budget(request.budget), request.fallback)
    if request.fallback:
        raise QuantizeError(
            "--fallback applies to the layers that --budget leaves unquantized", "--fallback", "give a `--budget` too"
        )
    return Scoring(None, None) if request.sensitivity else None


WINDOWS, LENGTH = 2, 128


class Switchboard:
    """Turns the quantization of single layers on and off."""

    def __init__(self, quantized: QuantizedTorchModel) -> None:
        self._quantized, self._originals = quantized, quantized.originals
        self._modules = dict(quantized.model.named_modules())
        self._wanted = {layer: self._is_inputs_enabled(layer) for layer in quantized.choice.methods}
        self._emulated = {
            layer: EmulatedLayer(self._modules[layer.module], kind)
            for layer in quantized.choice.methods
            if FORMATS[kind := quantized.choice.of(layer).format].block
        }

    @property
    def layers(self) -> list[LinearLayer]:
        return list(self._wanted)

    def only(self, layers: Iterable[LinearLayer]) -> None:
        """Quantize only these layers."""
        on = set(layers)
        for layer in self._wanted:
            self._set(layer, layer in on)

    def restore(self) -> None:
        """Quantize all layers again, as at the start."""
        self.only(self.layers)
        for layer in self._emulated.values():
            layer.give_back()

    def _set(self, layer: LinearLayer, is_on: bool) -> None:
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

    def _is_inputs_enabled(self, layer: LinearLayer) -> bool:
        quantizer = getattr(self._modules[layer.module], "input_quantizer", None)
        return quantizer is not None and bool(quantizer.is_enabled)


class Scorer:
    """Measures a model's loss against its unquantized self on windows of text."""

    def __init__(self, model: Any, texts: Sequence[Sequence[int]]) -> None:
        """Record the reference; the model must be unquantized at this point."""
        self._model = model
        self._ids = torch.tensor([list(ids[:LENGTH]) for ids in texts[:WINDOWS]])
        self._base = self._log_probabilities()
        self._weights = self._base.exp()

    def loss(self) -> float:
        """Return the current loss: the KL divergence in nats per token. Raises QuantizeError if it is not finite."""
        loss = float((self._weights * (self._base - self._log_probabilities())).sum(-1).mean())
        if not loss < float("inf"):
            raise QuantizeError("the quantized model outputs NaN", fix="exclude layers, or use another method")
        return max(loss, 0.0)

    def _log_probabilities(self) -> torch.Tensor:
        with torch.inference_mode():
            return torch.log_softmax(self._model(self._ids, use_cache=False).logits.double(), dim=-1)


@contextmanager
def _compared(quantized: QuantizedTorchModel, texts: Sequence[Sequence[int]]) -> Iterator[tuple[Switchboard, Scorer]]:
    """Yield a switchboard and a scorer with the unquantized reference; quantize all layers again afterwards."""
    switches = Switchboard(quantized)
    switches.only([])
    yield switches, Scorer(quantized.model, texts)
    switches.restore()


def loss_of(quantized: QuantizedTorchModel, texts: Sequence[Sequence[int]]) -> float:
    """Return a model's loss from quantization in nats."""
    with _compared(quantized, texts) as (switches, scorer):
        switches.only(switches.layers)
        return scorer.loss()


def layer_losses(
    switches: Switchboard, scorer: Scorer, methods: dict[LinearLayer, str], bits: Bits, report: Any
) -> list[LayerLoss]:
    """Return each layer's loss when only that layer is quantized, the largest first."""
    rows = []
    for index, layer in enumerate(switches.layers):
        switches.only([layer])
        method = methods[layer]
        rows.append(LayerLoss(layer.name, method, scorer.loss(), layer.rows * layer.size, bits(method), bits.left()))
        report(index + 1, len(switches.layers))
    return sorted(rows, key=lambda row: -row.loss)


def score(
    quantized: QuantizedTorchModel,
    texts: Sequence[Sequence[int]],
    budget: Budget | None,
    bits: Bits,
    report: Any,
) -> Scores:
    """Score every layer on its own, and the model within the budget. All layers are quantized again afterwards.

    Raises QuantizeError for budgets that cannot be met.
    """
    with _compared(quantized, texts) as (switches, scorer):
        losses = layer_losses(switches, scorer, quantized.choice.methods, bits, report)
        by_name = {layer.name: layer for layer in switches.layers}

        def loss_without(kept: Sequence[str]) -> float:
            switches.only(layer for name, layer in by_name.items() if name not in set(kept))
            return scorer.loss()

        kept, loss = ([], loss_without([])) if budget is None else keep_for(budget, losses, loss_without)
        return Scores(tuple(losses), tuple(loss_by_size(losses, loss_without)), tuple(kept), loss)
