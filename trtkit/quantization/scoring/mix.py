"""Score a quantized model's layers, and give those that a budget leaves another method, or none."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from trtkit.errors import QuantizeError
from trtkit.quantization.scoring.budget import Bits, Budget, parse_budget
from trtkit.quantization.scoring.sensitivity import loss_of, score

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from trtkit.jobs.steps import Steps
    from trtkit.quantization.jobs import ScoringRequest
    from trtkit.quantization.llm.choice import Choice
    from trtkit.quantization.llm.torch_model import QuantizedTorchModel
    from trtkit.quantization.scoring.report import Scores


@dataclass(frozen=True)
class Scoring:
    """That layers are to be scored. budget: what is to hold, if anything; fallback: method of layers that it leaves."""

    budget: Budget | None
    fallback: str | None


@dataclass(frozen=True, eq=False)
class Mixer:
    """Makes quantized models of one source. make: of a choice; texts: to score on; steps: where scoring is noted."""

    make: Callable[[Choice], QuantizedTorchModel]
    texts: Sequence[Sequence[int]]
    has_zero_points: bool
    steps: Steps

    def mixed(self, choice: Choice, scoring: Scoring) -> tuple[QuantizedTorchModel, Scores]:
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

    def _remaining(self, choice: Choice, scoring: Scoring) -> Budget | None:
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
    """Return how layers are to be scored, None where that is not asked. Raises QuantizeError."""
    if request.budget:
        return Scoring(parse_budget(request.budget), request.fallback)
    if request.fallback:
        raise QuantizeError(
            "--fallback applies to the layers that --budget leaves unquantized", "--fallback", "give a `--budget` too"
        )
    return Scoring(None, None) if request.sensitivity else None
