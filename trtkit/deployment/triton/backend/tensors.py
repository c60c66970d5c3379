"""A bundle's network as a model of Triton's Python backend: requests that wait together run as one batch."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np

from trtkit.deployment.triton.backend.requests import answer, arrays_of, refusal, version_folder
from trtkit.inputs.samples import Sample, check_profiles
from trtkit.runtime.model import open_model

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from trtkit.arrays import Arrays


class TensorModel:
    """The class that Triton's Python backend calls."""

    def initialize(self, args: Mapping[str, str]) -> None:
        """Open the bundle in the version's folder on the GPU that Triton assigns, and check its files."""
        if args["model_instance_kind"] == "GPU":
            from trtkit.runtime.device import use_device

            use_device(int(args["model_instance_device_id"]))
        self._model = open_model(version_folder(args) / "bundle", "auto")
        self._max_batch: int = json.loads(args["model_config"])["max_batch_size"]
        self._profiles = self._model.bundle.manifest.profiles

    def execute(self, requests: Sequence[Any]) -> list[Any]:
        """Answer each request; those of the same shape run together."""
        answers: list[Any] = [None] * len(requests)
        valid: dict[int, Arrays] = {}
        for index, request in enumerate(requests):
            try:
                inputs = arrays_of(request)
                check_profiles(Sample(f"request {request.request_id()}".rstrip(), inputs), self._profiles)
                valid[index] = inputs
            except Exception as error:
                answers[index] = refusal(error)
        for group in _groups(valid, self._max_batch):
            for index, response in self._run(group, [valid[index] for index in group]):
                answers[index] = response
        return answers

    def _run(self, group: Sequence[int], requests: Sequence[Arrays]) -> Iterator[tuple[int, Any]]:
        """Run requests as one batch and yield each response. If it fails, each runs alone: only one may be at fault."""
        try:
            outputs = self._model.run(_joined(requests))
        except Exception as error:
            if len(group) == 1:
                yield group[0], refusal(error)
                return
            for index, inputs in zip(group, requests, strict=True):
                yield from self._run([index], [inputs])
            return
        if len(group) == 1:
            yield group[0], answer(outputs)
            return
        ends = np.cumsum([next(iter(inputs.values())).shape[0] for inputs in requests])
        for index, start, end in zip(group, [0, *ends[:-1]], ends, strict=True):
            yield index, answer({name: value[start:end] for name, value in outputs.items()})


def _groups(requests: Mapping[int, Arrays], max_batch: int) -> Iterator[list[int]]:
    """Yield requests that fit into one batch: equal shapes except the batch axis, and no more rows than the limit."""
    waiting: dict[Any, list[int]] = {}
    for index, inputs in requests.items():
        waiting.setdefault(tuple((name, value.shape[1:]) for name, value in inputs.items()), []).append(index)
    for indices in waiting.values():
        group: list[int] = []
        rows = 0
        for index in indices:
            count = next(iter(requests[index].values())).shape[0] if max_batch else 1
            if group and (max_batch == 0 or rows + count > max_batch):
                yield group
                group, rows = [], 0
            group.append(index)
            rows += count
        yield group


def _joined(requests: Sequence[Arrays]) -> Arrays:
    """Return the inputs of several requests concatenated into a batch."""
    if len(requests) == 1:
        return requests[0]
    return {name: np.concatenate([inputs[name] for inputs in requests]) for name in requests[0]}
