"""Score a quantized model's layers one at a time, and choose their methods within a budget."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch

from trtkit.errors import QuantizeError
from trtkit.quantization.scoring.budget import Bits, Budget, keep_for, loss_by_size, parse_budget
from trtkit.quantization.scoring.emulation import EmulatedLayer
from trtkit.quantization.scoring.report import LayerLoss, Scores
from trtkit.quantization_methods import FORMATS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from trtkit.jobs.events import Steps
    from trtkit.quantization.jobs import ScoringRequest
    from trtkit.quantization.llm.choice import LinearLayer, MethodChoice
    from trtkit.quantization.llm.torch_model import QuantizedTorchModel


@dataclass(frozen=True)
class Scoring:
    """That layers are to be scored. budget: what is to hold, if anything; fallback: method of layers that it leaves."""

    budget: Budget | None
    fallback: str | None


@dataclass(frozen=True, eq=False)
class Mixer:
    """Makes quantized models of one source. make: of a choice; texts: to score on; steps: where scoring is noted."""

    make: Callable[[MethodChoice], QuantizedTorchModel]
    texts: Sequence[Sequence[int]]
    has_zero_points: bool
    steps: Steps

    def mixed(self, choice: MethodChoice, scoring: Scoring) -> tuple[QuantizedTorchModel, Scores]:
        """Return the model quantized as the budget allows, and its layers' scores.

        Raises QuantizeError for budgets that nothing holds.
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
        """Return the budget less what the fallback itself loses, were all layers left to it.

        Losses of small errors add up; what the mix really loses is measured in the end.
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
    """Return how layers are to be scored, None if that is not asked. Raises QuantizeError."""
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
        """All quantized layers."""
        return list(self._wanted)

    def only(self, layers: Iterable[LinearLayer]) -> None:
        """Quantize these layers, and no others."""
        on = set(layers)
        for layer in self._wanted:
            self._set(layer, layer in on)

    def restore(self) -> None:
        """Quantize all layers, as before this was made."""
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
    """Compares a model with itself unquantized, on windows of text."""

    def __init__(self, model: Any, texts: Sequence[Sequence[int]]) -> None:
        """The model is to be unquantized at this moment."""
        self._model = model
        self._ids = torch.tensor([list(ids[:LENGTH]) for ids in texts[:WINDOWS]])
        self._base = self._log_probabilities()
        self._weights = self._base.exp()

    def loss(self) -> float:
        """Return the loss as the model is now. Raises QuantizeError if it is not a number."""
        loss = float((self._weights * (self._base - self._log_probabilities())).sum(-1).mean())
        if not loss < float("inf"):
            raise QuantizeError("the quantized model outputs NaN", fix="exclude layers, or use another method")
        return max(loss, 0.0)

    def _log_probabilities(self) -> torch.Tensor:
        with torch.inference_mode():
            return torch.log_softmax(self._model(self._ids, use_cache=False).logits.double(), dim=-1)


@contextmanager
def _compared(quantized: QuantizedTorchModel, texts: Sequence[Sequence[int]]) -> Iterator[tuple[Switchboard, Scorer]]:
    """Give what turns layers on and off, and what compares with the model unquantized; then all is as before."""
    switches = Switchboard(quantized)
    switches.only([])
    yield switches, Scorer(quantized.model, texts)
    switches.restore()


def loss_of(quantized: QuantizedTorchModel, texts: Sequence[Sequence[int]]) -> float:
    """Return what a model loses by its quantization, in nats."""
    with _compared(quantized, texts) as (switches, scorer):
        switches.only(switches.layers)
        return scorer.loss()


def layer_losses(
    switches: Switchboard, scorer: Scorer, methods: dict[LinearLayer, str], bits: Bits, report: Any
) -> list[LayerLoss]:
    """Return each layer's loss with it alone quantized, the largest first."""
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
    """Measure every layer alone, and the whole as the budget allows. The model is quantized as before after this.

    Raises QuantizeError for budgets that nothing holds.
    """
    with _compared(quantized, texts) as (switches, scorer):
        losses = layer_losses(switches, scorer, quantized.choice.methods, bits, report)
        by_name = {layer.name: layer for layer in switches.layers}

        def loss_without(kept: Sequence[str]) -> float:
            switches.only(layer for name, layer in by_name.items() if name not in set(kept))
            return scorer.loss()

        kept, loss = ([], loss_without([])) if budget is None else keep_for(budget, losses, loss_without)
        return Scores(tuple(losses), tuple(loss_by_size(losses, loss_without)), tuple(kept), loss)
