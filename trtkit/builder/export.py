"""Export a language model as another tool's checkpoint, atomically."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from trtkit.builder.decoders import makes_checkpoint
from trtkit.builder.jobs import EXPORT, ExportRequest
from trtkit.bundle.folder_lock import atomic_folder
from trtkit.errors import ConfigError, Problem
from trtkit.jobs.json_form import to_json
from trtkit.resolve import resolve

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trtkit.builder.jobs import Exported
    from trtkit.config.schema import ModelConfig
    from trtkit.jobs.runner import Runner

ExportFormat = Literal["tensorrt-llm"]
FIRST = "rank0.safetensors"
"""The file that marks a folder as such a checkpoint."""


@dataclass(frozen=True)
class ExportResult:
    """A written checkpoint: its folder, details and size."""

    path: Path
    exported: Exported
    size_bytes: int

    def to_json(self) -> dict[str, object]:
        """Return the result as JSON."""
        return {"path": str(self.path), **to_json(self.exported), "size_bytes": self.size_bytes}

    def __str__(self) -> str:
        """Return its path, kind and size."""
        return f"{self.path}: {self.exported.kind}, {self.size_bytes / 2**20:.1f} MiB"


def export_model(
    config: ModelConfig, to: ExportFormat, out: Path | None, runner: Runner, *, requantize: bool = False
) -> ExportResult:
    """Export the language model of `config` as another tool's checkpoint.

    to: `tensorrt-llm`, whose releases 1.0 to 1.2 build engines from it: `parallel.tensor` times `parallel.pipeline`
        ranks, in the config's precision.
    out: `exported/NAME-TO` if None; replaced if it holds an earlier export.
    requantize: whether fp8 queries, keys and values of different scales, which the format joins, are rounded to the
        largest scale; otherwise they are refused.
    Raises TrtkitError; `out` is then left unchanged.
    """
    model = resolve(config)
    config = model.config
    problems = list(_problems(config))
    if model.interface != "tokens" or len(model.part_names) > 1:
        fix = "`--set vision.enabled=false` exports the language model alone" if model.takes_images else ""
        problems = [Problem("only decoder-only language models can be exported", "source", fix)]
    if problems:
        raise ConfigError("the model cannot be exported", problems)
    out = out or Path("exported") / f"{config.name}-{to}"
    with atomic_folder(out, replaces=FIRST) as folder:
        exported = runner.run(EXPORT, ExportRequest(config, folder, requantize))
        size = sum(path.stat().st_size for path in folder.iterdir())
    return ExportResult(out, exported, size)


def _problems(config: ModelConfig) -> Iterator[Problem]:
    """Yield the config keys that a checkpoint cannot express."""
    if makes_checkpoint(config):
        fix = "run `trtkit quantize`, then export what it writes"
        yield Problem("the model is quantized when it is built", "quantize", fix)
    options = config.parallel
    if options is None:
        return
    for key in ("expert", "context"):
        if getattr(options, key) != 1:
            yield Problem(f"{getattr(options, key)} ranks have no form there", f"parallel.{key}", "remove it")
