"""Calibration: run text through a transformers model to measure the ranges of its layers' inputs and caches."""

from __future__ import annotations

from collections import defaultdict
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from transformers.cache_utils import Cache

from trtkit.errors import QuantizeError
from trtkit.sources import package_file

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from trtkit.config.quantize import Calibration
    from trtkit.quantization.llm.choice import CachedLayer, LinearLayer

Json = dict[str, Any]
Pair = tuple[torch.Tensor, torch.Tensor]


def read_text(calibration: Calibration) -> str:
    """Return the calibration text. Raises QuantizeError if none is named or it cannot be read."""
    if calibration.data is None:
        fix = "give text like what the model will read: `--calib FILE`, or `quantize.calibration.data`"
        raise QuantizeError("this method needs calibration text", "quantize.calibration", fix)
    path: Path = package_file.resolve(calibration.data)
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise QuantizeError(
            f"the calibration text cannot be read: {error}", str(path), "give a UTF-8 text file"
        ) from None


def windows(ids: Sequence[int], calibration: Calibration, section: str = "quantize.calibration") -> list[list[int]]:
    """Return windows of `length` tokens, at most `samples` of them, spread over the text.

    section: the config section with the calibration. Raises QuantizeError for a text shorter than one window.
    """
    length, count = calibration.length, len(ids) // calibration.length
    if not count:
        what = f"the calibration text has {len(ids)} tokens; a window needs {length}"
        raise QuantizeError(what, str(calibration.data), f"give a longer text, or lower `{section}.length`")
    step = max(1, count // calibration.samples)
    return [list(ids[at * length : (at + 1) * length]) for at in range(0, count, step)][: calibration.samples]


@dataclass
class LayerStatistics:
    """Statistics of a layer's inputs and outputs.

    peaks, squares: largest magnitude and mean square of each input channel, [in]. inverse_outputs: mean over tokens of
    1 / |output|^2.
    """

    peaks: torch.Tensor
    squares: torch.Tensor
    inverse_outputs: float
    tokens: int

    def joined(self, other: LayerStatistics) -> LayerStatistics:
        """Return the combined statistics of both."""
        tokens = self.tokens + other.tokens
        ours, its = self.tokens / tokens, other.tokens / tokens
        return LayerStatistics(
            torch.maximum(self.peaks, other.peaks),
            ours * self.squares + its * other.squares,
            ours * self.inverse_outputs + its * other.inverse_outputs,
            tokens,
        )


@dataclass
class CalibrationStatistics:
    """Results of calibration. layers: by name. caches: largest magnitude by layer number and cache."""

    layers: dict[str, LayerStatistics] = field(default_factory=dict)
    caches: dict[int, dict[str, float]] = field(default_factory=lambda: defaultdict(dict))

    def note_cached(self, layer: int, cache: str, numbers: torch.Tensor) -> None:
        """Update the largest magnitude of a cache."""
        peaks = self.caches[layer]
        peaks[cache] = max(peaks.get(cache, 0.0), float(numbers.abs().max()))


def run(model: Any, texts: Iterable[Sequence[int]], report: Callable[[int], None]) -> None:
    """Run windows through the model one by one and report progress."""
    with torch.inference_mode():
        for index, ids in enumerate(texts):
            model(torch.tensor([list(ids)]), use_cache=False)
            report(index + 1)


def measure(
    model: Any,
    layers: Sequence[LinearLayer],
    cached: Mapping[int, CachedLayer],
    texts: Sequence[Sequence[int]],
    report: Callable[[int], None],
) -> CalibrationStatistics:
    """Return the statistics of `layers`, and the peaks of the caches of `cached`, over the windows.

    Raises QuantizeError if inputs are not finite or all zero.
    """
    measured = CalibrationStatistics()
    modules = dict(model.named_modules())
    hooks = [modules[layer.module].register_forward_hook(_hook(measured, layer)) for layer in layers]
    try:
        with torch.inference_mode(), _noted_caches(measured, cached):
            for index, ids in enumerate(texts):
                model(torch.tensor([list(ids)]), use_cache=bool(cached))
                report(index + 1)
    finally:
        for hook in hooks:
            hook.remove()
    for name, statistics in measured.layers.items():
        check_inputs(name, statistics.squares)
    return measured


def check_inputs(name: str, squares: torch.Tensor) -> None:
    """Raise QuantizeError if a layer's inputs are all zero or not finite. squares: sum of squares per channel."""
    if not torch.isfinite(squares).all() or squares.max() == 0:
        what = "inputs are all zero" if squares.max() == 0 else "inputs are NaN or infinite"
        raise QuantizeError(f"{what} on the calibration text", name, "exclude the layer, or use other text")


def _hook(measured: CalibrationStatistics, layer: LinearLayer) -> Any:
    def note(_: torch.nn.Module, inputs: tuple[torch.Tensor, ...], output: torch.Tensor) -> None:
        x, y = (side.detach().reshape(-1, side.shape[-1]).float() for side in (inputs[0], output))
        inverse = float((1 / y.square().sum(1).clamp(min=_TINY)).mean())
        seen = LayerStatistics(x.abs().amax(0), x.square().mean(0), inverse, len(x))
        known = measured.layers.get(layer.name)
        measured.layers[layer.name] = seen if known is None else known.joined(seen)

    return note


@contextmanager
def _noted_caches(measured: CalibrationStatistics, cached: Mapping[int, CachedLayer]) -> Iterator[None]:
    """Record all that transformers writes to its caches, since these may end up with a sliding window's tokens only.

    Its layers may be numbered differently, but are in the same order.
    """
    update, numbers = Cache.update, list(cached)
    indices: dict[int, int] = {}

    def noting(
        cache: Cache, first: torch.Tensor, second: torch.Tensor, layer: int, *rest: object, **more: object
    ) -> Pair:
        index = indices.setdefault(layer, numbers[min(len(indices), len(numbers) - 1)])
        names = ("key", "value")
        if rank := cached[index].latent_rank:
            names = ("latent", "latent")
            if first.shape[-1] != rank:
                what = "this version of transformers caches expanded keys and values, not latent vectors"
                raise QuantizeError(what, cached[index].module, "install a newer transformers")
        for name, part in zip(names, (first, second), strict=True):
            if part.numel():
                measured.note_cached(index, name, part)
        updated: Pair = update(cache, first, second, layer, *rest, **more)
        return updated

    Cache.update = noting
    try:
        yield
    finally:
        Cache.update = update
    if len(indices) != len(numbers):
        what = f"transformers has {len(indices)} layers with caches, the network {len(numbers)}"
        raise QuantizeError(what, "quantize.kv_cache", "leave it out")


_TINY = 1e-12
