"""Search for the nodes that need fp32.

Verify that keeping them in fp32 repairs the network, and write them to a config.
"""

from __future__ import annotations

import glob
import math
from typing import TYPE_CHECKING

import yaml

from trtkit.errors import TrtkitError
from trtkit.jobs.events import Step
from trtkit.verification.verify import verify_config

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trtkit.config.schema import ModelConfig
    from trtkit.jobs.runner import Runner
    from trtkit.verification.report import LayerError, Report
    from trtkit.verification.verify import VerifySettings


# Each round keeps the nodes found so far and verifies again.
_MOST_ROUNDS = 5
# If nothing overflows, each round keeps this many of the nodes that add the most error.
_NODES_A_ROUND = 4


def repair(config: ModelConfig, report: Report, request: VerifySettings, runner: Runner) -> tuple[ModelConfig, Report]:
    """Return a config whose `keep_fp32` patterns bring the network into tolerance, and its report.

    report: the failed one, with layers. Raises TrtkitError if no tried pattern does.
    """
    for _ in range(_MOST_ROUNDS):
        nodes = suspects(report.layers, config)
        if not nodes:
            break
        patterns = (*config.keep_fp32, *(glob.escape(node) for node in nodes))
        config = config.model_copy(update={"keep_fp32": tuple(dict.fromkeys(patterns))})
        runner.report(Step("keep fp32", ", ".join(nodes), 0.0))
        report = verify_config(config, request, runner)
        if report.passed:
            return config, report
    kept = ", ".join(config.keep_fp32) or "none"
    raise TrtkitError(
        f"no set of fp32 nodes brings `{config.name}` into tolerance {report.tolerance:g}; tried: {kept}",
        fix="build it in fp32 or bf16, or set `verify.max_relative_rms_error` to what the task allows",
    )


def suspects(layers: Sequence[LayerError], config: ModelConfig) -> list[str]:
    """Return the ONNX nodes to keep in fp32 next.

    Those around out-of-range values, otherwise those that add the most error.
    """
    low = [layer for layer in layers if layer.dtype == config.precision and layer.node]
    overflowing = [layer for layer in low if not layer.is_finite or layer.headroom_bits[config.precision] < 0]
    if overflowing:
        return _nodes(_with_readers(overflowing, layers), config)
    errors = [_finite(layer) for layer in low]
    growth = [error - before for before, error in zip([0.0, *errors], errors, strict=False)]
    ranked = [layer for _, layer in sorted(zip(growth, low, strict=True), key=lambda item: item[0], reverse=True)]
    return _nodes(ranked, config)[:_NODES_A_ROUND]


def config_yaml(config: ModelConfig) -> str:
    """Return the values of `config` that differ from the defaults, as YAML."""
    return yaml.safe_dump(config.model_dump(mode="json", exclude_defaults=True), sort_keys=False)


def _finite(layer: LayerError) -> float:
    return layer.relative_rms_error if layer.relative_rms_error < math.inf else 0.0


def _with_readers(overflowing: Sequence[LayerError], layers: Sequence[LayerError]) -> list[LayerError]:
    """Add the layers that read an overflowing tensor.

    A tensor leaves fp32 if any of its producers or consumers does.
    """
    tensors = {layer.tensor for layer in overflowing if layer.headroom_bits["fp16"] < 0 or not layer.is_finite}
    first = [layer for layer in overflowing if layer.headroom_bits["fp16"] < 0] or overflowing[:1]
    return [*first, *(layer for layer in layers if tensors & set(layer.reads))]


def _nodes(layers: Sequence[LayerError], config: ModelConfig) -> list[str]:
    """Return the nodes of layers that are not kept yet, without duplicates; AutoCast's own casts are skipped."""
    kept = set(config.keep_fp32)
    nodes = [layer.node for layer in layers if layer.node and layer.kind != "cast"]
    return [node for node in dict.fromkeys(nodes) if glob.escape(node) not in kept]
