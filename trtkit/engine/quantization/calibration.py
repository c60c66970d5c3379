"""Run text through a model of transformers: what ranges its layers' inputs and its caches have."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from trtkit.errors import QuantizeError
from trtkit.sources import package_file

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from pathlib import Path

    from trtkit.config.quantize import Calibration
    from trtkit.engine.quantization.choice import Layer

Json = dict[str, Any]


def read_text(calibration: Calibration) -> str:
    """Return the calibration text. Raises QuantizeError where none is named or it cannot be read."""
    if calibration.data is None:
        fix = "name a text like those it will read: `--calib FILE`, or `quantize.calibration.data`"
        raise QuantizeError("this method measures the model on text, and no text is given", "quantize.calibration", fix)
    path: Path = package_file.resolve(calibration.data)
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise QuantizeError(
            f"the calibration text cannot be read: {error}", str(path), "give a UTF-8 text file"
        ) from None


def windows(ids: Sequence[int], calibration: Calibration) -> list[list[int]]:
    """Return windows of `length` tokens, `samples` at most, spread over the text. Raises QuantizeError without one."""
    length, count = calibration.length, len(ids) // calibration.length
    if not count:
        what = f"the calibration text has {len(ids)} tokens, a window takes {length}"
        raise QuantizeError(what, str(calibration.data), "give a longer text, or lower `quantize.calibration.length`")
    step = max(1, count // calibration.samples)
    return [list(ids[at * length : (at + 1) * length]) for at in range(0, count, step)][: calibration.samples]


@dataclass
class Peaks:
    """Largest magnitudes. inputs: of each channel of each layer's inputs; keys, values: of each layer's cache."""

    inputs: dict[str, torch.Tensor] = field(default_factory=dict)
    keys: list[float] = field(default_factory=list)
    values: list[float] = field(default_factory=list)

    def is_outlier(self, layer: Layer, factor: float) -> bool:
        """Whether a layer's largest channel is `factor` times its median one, or more."""
        peaks = self.inputs[layer.name]
        return bool(peaks.max() > factor * peaks.median())


def run(model: Any, texts: Iterable[Sequence[int]], report: Callable[[int], None]) -> None:
    """Run windows through the model, one by one; tell how many are done."""
    with torch.inference_mode():
        for index, ids in enumerate(texts):
            model(torch.tensor([list(ids)]), use_cache=False)
            report(index + 1)


def measure(
    model: Any, layers: Sequence[Layer], texts: Sequence[Sequence[int]], report: Callable[[int], None]
) -> Peaks:
    """Return the peaks of layers' inputs and of caches over the windows.

    Raises QuantizeError where inputs are not finite or all zero.
    """
    peaks = Peaks()
    modules = dict(model.named_modules())
    hooks = [_linear(modules, layer).register_forward_pre_hook(_hook(peaks, layer)) for layer in layers]
    try:
        with torch.inference_mode():
            for index, ids in enumerate(texts):
                cache = model(torch.tensor([list(ids)]), use_cache=True).past_key_values
                peaks.keys = _larger(peaks.keys, [float(layer.keys.abs().max()) for layer in cache.layers])
                peaks.values = _larger(peaks.values, [float(layer.values.abs().max()) for layer in cache.layers])
                report(index + 1)
    finally:
        for hook in hooks:
            hook.remove()
    for name, found in peaks.inputs.items():
        if not torch.isfinite(found).all() or found.max() == 0:
            what = "inputs are all zero" if found.max() == 0 else "inputs are NaN or infinite"
            raise QuantizeError(f"{what} on the calibration text", name, "exclude the layer, or give other text")
    return peaks


def _linear(modules: dict[str, torch.nn.Module], layer: Layer) -> torch.nn.Module:
    """Return a layer's module. Raises QuantizeError where it is none that ModelOpt quantizes."""
    module = modules.get(layer.module)
    if not isinstance(module, torch.nn.Linear):
        what = f"`{layer.module}` is no linear layer in transformers"
        raise QuantizeError(what, layer.name, "exclude it: `quantize.exclude`")
    return module


def _hook(peaks: Peaks, layer: Layer) -> Any:
    def note(_: torch.nn.Module, inputs: tuple[torch.Tensor, ...]) -> None:
        found = inputs[0].detach().abs().reshape(-1, inputs[0].shape[-1]).amax(0)
        known = peaks.inputs.get(layer.name)
        peaks.inputs[layer.name] = found if known is None else torch.maximum(known, found)

    return note


def _larger(first: list[float], second: list[float]) -> list[float]:
    return [max(pair) for pair in zip(first, second, strict=True)] if first else second
