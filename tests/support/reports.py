"""Verification reports, for tests of code that reads reports."""

from __future__ import annotations

from typing import Any

from trtkit.verification.report import Agreement, LayerError, Output, Report

_KINDS = ("fp16", "bf16", "fp8")


def report(**changes: Any) -> Report:
    """Return the report of a network that passes."""
    fields: dict[str, Any] = {
        "name": "tiny",
        "passed": True,
        "precision": "fp16",
        "reference": "ONNX Runtime",
        "executor": "reference executor",
        "tolerance": 0.02,
        "slice_tolerance": 0.2,
        "slice_floor": 1e-4,
        "samples": ("random",),
        "outputs": {"logits": output(0.001)},
        "hollow": (),
        "task": Agreement("top-1", required=1.0, answers=((1, 1),)),
    }
    return Report(**{**fields, **changes})


def output(error: float, *, passed: bool = True, spread: float | None = None, **changes: Any) -> Output:
    """Return an output with this relative RMS error."""
    return Output(error, 0.5, 0.5, 0.999, passed=passed, spread=spread, **changes)


def layer(name: str, error: float, largest: float = 1.0, **changes: Any) -> LayerError:
    """Return a layer with this relative RMS error."""
    fields: dict[str, Any] = {
        "layer": name,
        "kind": "convolution",
        "node": name,
        "tensor": name,
        "dtype": "fp16",
        "relative_rms_error": error,
        "is_finite": True,
        "largest": largest,
        "smallest": 0.0,
        "headroom_bits": dict.fromkeys(_KINDS, 1.0),
        "flushed": dict.fromkeys(_KINDS, 0.25),
    }
    return LayerError(**{**fields, **changes})
