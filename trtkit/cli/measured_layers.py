"""What `trtkit verify --layers` and `trtkit bench` measured of a network's layers, read from their JSON."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from trtkit.network.fusion import Fusion
    from trtkit.report.fusion import Measured

_WRITE = "write one by `trtkit verify BUNDLE --layers --json` or `trtkit bench BUNDLE --save FILE`"


@dataclass(frozen=True)
class TimedLayers:
    """The layers of one call. phase: `prefill` or `decode` for a language model. shapes: of a vision model's inputs.

    Layers that were timed together share the time.
    """

    phase: str
    shapes: dict[str, tuple[int, ...]]
    times_ms: dict[str, float]


@dataclass(frozen=True)
class LayerReport:
    """A report's errors by layer, and its calls in their order."""

    path: Path
    errors: dict[str, float]
    calls: tuple[TimedLayers, ...]


def read_layers(path: Path) -> LayerReport:
    """Return what a report has of layers. Raises UsageError for any other file."""
    try:
        report = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise click.UsageError(f"--measured: {path} cannot be read: {error}") from None
    try:
        layers = report.get("layers") or ()
        errors = {each["layer"]: float(each["relative_rms_error"]) for each in layers}
        calls = tuple(
            TimedLayers(
                phase["name"],
                {name: tuple(shape) for name, shape in case.get("shapes", {}).items()},
                {each["layer"]: each["ms"] / max(1, each["layers"]) for each in phase["layers"]},
            )
            for case in report.get("cases") or ()
            for phase in case.get("phases", ())
        )
    except (AttributeError, KeyError, TypeError, ValueError):
        errors, calls = {}, ()
    if not errors and not calls:
        raise click.UsageError(f"--measured: {path} is not a report with layers; {_WRITE}")
    return LayerReport(path, {name: each for name, each in errors.items() if math.isfinite(each)}, calls)


def measured_of(reports: Sequence[LayerReport], fusion: Fusion) -> Measured:
    """Return what reports say of a fusion's layers: of the calls, the one at its shapes, or else the first."""
    from trtkit.report.fusion import Measured

    errors = {name: error for report in reports for name, error in report.errors.items()}
    times: dict[str, float] = {}
    for report in reports:
        calls = [each for each in report.calls if not fusion.phase or each.phase == fusion.phase]
        at_shapes = [each for each in calls if each.shapes == fusion.shapes]
        for call in (at_shapes or calls)[:1]:
            times |= call.times_ms
    return Measured(errors, times)


def check_layers(reports: Sequence[LayerReport], fusions: Sequence[tuple[Fusion, Sequence[str]]]) -> None:
    """Refuse a report without a layer of these networks: it is of another bundle. Raises UsageError."""
    for report in reports:
        if not any(measured_of([report], fusion).knows(name) for fusion, names in fusions for name in names):
            raise click.UsageError(f"--measured: {report.path} has no layer of this bundle; {_WRITE}")
