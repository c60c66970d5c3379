"""Python backend model that converts a network's outputs to answers: classes, text or boxes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from trtkit.deployment.answers import PLACEMENT, answer_tensors, reader_from
from trtkit.deployment.triton.backend.requests import answer, arrays_of, read_settings, refusal


class AnswerModel:
    """The class that Triton's Python backend calls."""

    def initialize(self, args: Mapping[str, str]) -> None:
        """Read how the outputs are interpreted."""
        self._reader = reader_from(read_settings(args))

    def execute(self, requests: Sequence[Any]) -> list[Any]:
        """Answer each request."""
        return [self._answer(request) for request in requests]

    def _answer(self, request: Any) -> Any:
        try:
            outputs = arrays_of(request)
            placements = outputs.pop(PLACEMENT, None)
            return answer(answer_tensors(self._reader, outputs, placements))
        except Exception as error:
            return refusal(error)
