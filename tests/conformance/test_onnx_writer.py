"""ONNX node cases parsed by TensorRT and written as ONNX again: ONNX Runtime computes what each case expects."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import onnxruntime
import pytest

from tests.support.onnx_oracle import session
from trtkit.backends import load_backend
from trtkit.errors import TrtkitError
from trtkit.network.layer_graph import read_layers
from trtkit.network.onnx.from_layers import onnx_model
from trtkit.reference import Executor, to_tensor

from .__main__ import collect
from .case import inputs_of, log_of, mismatch, rewritten
from .test_conformance import SAMPLE

if TYPE_CHECKING:
    from collections.abc import Iterable

    from trtkit.backends import Backend

NUMPY_TYPES = {"fp32", "fp16", "int64", "int32", "int8", "uint8", "bool"}
"""What ONNX Runtime's Python API takes and returns."""
NO_KERNEL = onnxruntime.capi.onnxruntime_pybind11_state.NotImplemented


@dataclass
class Tally:
    """How far cases came. refused: reasons. wrong: cases that ONNX Runtime computes otherwise, and how."""

    written: int = 0
    equal: int = 0
    refused: Counter[str] = field(default_factory=Counter)
    wrong: list[tuple[str, str]] = field(default_factory=list)

    def add(self, backend: Backend, case: Any) -> None:
        """Write a case that TensorRT parses, and run what was written if the executor gives what the case expects."""
        prepared, log = rewritten(case, case.model), log_of(backend)
        network = backend.trt.Builder(log).create_network(0)
        parser = backend.trt.OnnxParser(network, log)
        if not parser.parse(prepared.model.SerializeToString()):
            return
        layers, inputs = read_layers(backend, network), inputs_of(prepared, network)
        try:
            model, _ = onnx_model(layers)
        except TrtkitError as error:
            self.refused[str(error).splitlines()[1].partition(": ")[2]] += 1
            return
        self.written += 1
        types = {layers.spec(slot).dtype.name for slot in (*layers.inputs, *layers.outputs)}
        if not types <= NUMPY_TYPES or not _is_expected(layers, inputs, prepared):
            return
        try:
            arrays = session(model).run(None, {name: np.asarray(value) for name, value in inputs.items()})
        except NO_KERNEL:
            return
        if how := mismatch(prepared, [to_tensor(array, case.name) for array in arrays]):
            self.wrong.append((case.name, how))
        self.equal += not how


def _is_expected(layers: Any, inputs: dict[str, Any], case: Any) -> bool:
    try:
        return not mismatch(case, list(Executor(layers).run(inputs).values()))
    except TrtkitError:
        return False


def _tally(cases: Iterable[Any]) -> Tally:
    backend, tally = load_backend("tensorrt_rtx"), Tally()
    for case in cases:
        tally.add(backend, case)
    return tally


def test_sampled_cases_are_written_as_they_were() -> None:
    tally = _tally(case for case in collect() if case.name.removeprefix("test_") in SAMPLE)
    assert not tally.wrong
    assert (tally.written, tally.equal) >= (58, 57)


@pytest.mark.conformance
def test_every_case_that_parses_is_written_as_it_was_or_refused() -> None:
    tally = _tally(collect())
    assert not tally.wrong
    assert (tally.written, tally.equal) >= (1152, 1073)
    assert {reason.partition(":")[0] for reason in tally.refused} <= {
        *("TRIP_LIMIT", "CONDITION", "CONDITIONAL_INPUT", "SLICE", "POOLING", "DYNAMIC_QUANTIZE"),
    }, tally.refused
